"""The data that flows: a Rollout is one response, a TokenBatch all responses of a step, TokenStats the policy's
statistics of their tokens.

Response tokens are kept flat, one after the other (`_T`), each with the number of its response (`sequence_T`).
Prompts and padding never enter these vectors, so every entry is a valid token: it counts in denominators and
metrics. Which tokens have a gradient is another question, answered by a method's weights.

Equal responses to a prompt have the same statistics, so a model computes them once (`without_copies`). Everything that
a method makes of them is kept for each copy: rewards, advantages, weights and the engine's log-probabilities differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness import ranks
from harness.base import seeds
from harness.base.errors import UserError
from harness.methods.distinct import Distinct

LONG = 64  # mean tokens of a sequence; from here on packing pays, by which attention computes each sequence apart


@dataclass(frozen=True)
class Rollout:
    prompt: list[int]
    response: list[int]  # with the end-of-sequence token, if it was sampled
    logp: list[float]  # of the engine that sampled, at its temperature
    finished: bool  # ended by end-of-sequence; otherwise cut off at the length limit


@dataclass(frozen=True)
class TokenStats:
    """The policy's statistics of each token, at the sampling temperature. Columns that were not requested are None."""

    logp: Tensor
    entropy: Tensor | None = None  # H over the full vocabulary
    sum_p2: Tensor | None = None
    sum_p2_logp: Tensor | None = None
    min_p_logp: Tensor | None = None  # after tokens of low probability are removed; -inf of a removed token
    likeliest_entropy: Tensor | None = None  # H among the likeliest tokens alone, scaled to the range of the entropy
    values: Tensor | None = None  # of a critic
    ref_logp: Tensor | None = None  # of the reference model

    @classmethod
    def cat(cls, parts: Sequence[TokenStats]) -> TokenStats:
        """Return the statistics of all parts, which have the same columns."""
        joined = {}
        for name in parts[0].columns:
            joined[name] = torch.cat([vars(part)[name] for part in parts])
        return cls(**joined)

    @property
    def columns(self) -> dict[str, Tensor]:
        """The computed columns, by name."""
        return {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}

    def detach(self) -> TokenStats:
        detached = {name: x.detach() for name, x in self.columns.items()}
        # `vars` has more than the columns: Nones, and the refusal of DeclaredStats.
        return type(self)(**{**vars(self), **detached})

    def at(self, index_T: Tensor) -> TokenStats:
        """Return the statistics of the tokens with these places."""
        of_tokens = {name: x[index_T] for name, x in self.columns.items()}
        return type(self)(**{**vars(self), **of_tokens})

    def only(self, names: Collection[str], refusal: Callable[[str], str]) -> TokenStats:
        """Return these columns alone; reading another one raises UserError with the sentence of `refusal(its name)`."""
        readable = {name: x for name, x in self.columns.items() if name in names}
        assert readable.keys() == set(names), f"not computed: {set(names) - readable.keys()}"
        return DeclaredStats(**readable, refusal=refusal)

    @property
    def discriminator(self) -> Tensor:
        """The entropy discriminator of the sampled token, S* = p (H + log p)."""
        assert self.entropy is not None
        return self.logp.exp() * (self.entropy + self.logp)

    @property
    def expected_discriminator(self) -> Tensor:
        """The mean of S over the vocabulary, N = E_{i~p}[S_i] = H sum p^2 + sum p^2 log p."""
        assert self.entropy is not None
        assert self.sum_p2 is not None
        assert self.sum_p2_logp is not None
        return self.entropy * self.sum_p2 + self.sum_p2_logp


@dataclass(frozen=True)
class DeclaredStats(TokenStats):
    """The columns that a component of a method has declared.

    Reading another column is an error and not None, even where it was computed for another component: a method that
    forgot a declaration would otherwise run in some configurations and fail in others.
    """

    refusal: Callable[[str], str] = dataclasses.field(kw_only=True)

    # Not __getattr__, which is called for missing attributes only: an undeclared column is there, as None. A declared
    # one is never None, as `TokenStats.only` makes sure.
    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if value is None and name in vars(self):
            raise UserError(self.refusal(name))
        return value

    def __repr__(self) -> str:
        return f"TokenStats({', '.join(f'{name}={x}' for name, x in self.columns.items())})"


class AbsentColumn(Tensor):
    """A column that a batch from elsewhere lacks; any use but a selection of rows says how to declare it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            return args[0]
        raise UserError(
            "a component reads answers_B, base_right_B or behaviour_logp_T of the batch, which are not there without "
            "its declaration; declare reads_answers = True, reads_base = True or reads_sampler = True"
        )


ABSENT: Tensor = torch.empty(0).as_subclass(AbsentColumn)


@dataclass(frozen=True)
class TokenBatch:
    """Responses in order, whole groups one after the other; also any part of such a batch (see `take`)."""

    sequences: list[Tensor]  # prompt and response tokens of each response
    prompt_lengths_B: Tensor
    lengths_B: Tensor  # of the responses
    groups_B: Tensor  # number of each response's prompt, 0 ...
    rewards_B: Tensor
    right_B: Tensor  # verified as right, however the reward is shaped
    base_right_B: Tensor  # the share of right responses to the same prompt that the model before training gave
    answers_B: Tensor  # equal numbers within a group: equal answers in the task's normal form; -1: without an answer
    finished_B: Tensor  # ended by end-of-sequence, and not by the length limit
    places_B: Tensor  # of the responses among those of all ranks, in the order of the prompts
    copy_of_B: Tensor  # the number of each response's text: equal responses of a group have the same one
    behaviour_logp_T: Tensor
    budget: int  # the most tokens a response may have
    seed: int  # of this cell at this step, for random choices of methods
    progress: float  # the share of the run's steps that are done
    index_T: Tensor  # the places of this part's tokens in the whole batch
    packed: bool = False  # runs through the model in one row, without padding

    @classmethod
    def of(
        cls,
        groups: Sequence[Sequence[Rollout]],
        rewards: Sequence[float],
        budget: int,
        device: str,
        *,
        right: Sequence[bool] | None = None,  # of the responses; None: those with a reward above 0
        base_right: Sequence[float] | None = None,  # of the prompts; None: unknown, and then NaN
        answers: Sequence[str | None] | None = None,  # of the responses, in the task's normal form; None: unknown
        places: Sequence[int] | None = None,  # of the prompts among those of all ranks; None: 0, 1 ...
        seed: int = 0,
        progress: float = 0.0,
    ) -> TokenBatch:
        """Return a batch of whole groups, all of one size."""
        size, rollouts = len(groups[0]), list(chain.from_iterable(groups))
        copy_of: list[int] = []
        for number, group in enumerate(groups):
            distinct = Distinct.of([(tuple(rollout.prompt), tuple(rollout.response)) for rollout in group])
            # Responses to two prompts never have the same number.
            copy_of += [number * size + copy for copy in distinct.copy_of]
        sequences = [rollout.prompt + rollout.response for rollout in rollouts]
        tokens = torch.tensor(list(chain.from_iterable(sequences)))
        behaviour_logp = list(chain.from_iterable(rollout.logp for rollout in rollouts))
        if right is None:
            right = [reward > 0 for reward in rewards]
        if answers is None:
            answers = [None] * len(rollouts)
        lengths_B = torch.tensor([len(rollout.response) for rollout in rollouts], device=device)
        finished_B = torch.tensor([rollout.finished for rollout in rollouts], device=device)
        # Not AbsentColumn where it is unknown: FSDP looks at every tensor of a batch.
        base_right_G = torch.tensor(base_right or [nan] * len(groups), device=device)
        # Of the first response of each group, its place among the responses of all ranks.
        first_G = torch.tensor(places or range(len(groups)), device=device) * size
        return cls(
            sequences=list(tokens.split([*map(len, sequences)])),  # one tensor, split: quicker than a tensor for each
            prompt_lengths_B=torch.tensor([len(rollout.prompt) for rollout in rollouts], device=device),
            lengths_B=lengths_B,
            groups_B=torch.arange(len(groups), device=device).repeat_interleave(size),
            rewards_B=torch.tensor(rewards, dtype=torch.float32, device=device),
            right_B=torch.tensor(right, dtype=torch.bool, device=device),
            base_right_B=base_right_G.repeat_interleave(size),
            answers_B=torch.tensor(answer_numbers(answers, size), device=device),
            finished_B=finished_B,
            places_B=(first_G[:, None] + torch.arange(size, device=device)).flatten(),
            copy_of_B=torch.tensor(copy_of, device=device),
            behaviour_logp_T=torch.tensor(behaviour_logp, device=device),
            budget=budget,
            seed=seed,
            progress=progress,
            index_T=torch.arange(int(lengths_B.sum()), device=device),
        )

    @classmethod
    def of_lengths(
        cls,
        lengths_B: Tensor,
        groups_B: Tensor,
        rewards_B: Tensor,
        right_B: Tensor,
        finished_B: Tensor,
        budget: int,
        *,
        base_right_B: Tensor | None = None,  # None: unknown, so that reading it is refused
        answers_B: Tensor | None = None,  # the same
        behaviour_logp_T: Tensor | None = None,  # the same
        places_B: Tensor | None = None,  # None: 0, 1 ...
        seed: int = 0,
        progress: float = 0.0,
    ) -> TokenBatch:
        """Return a batch of responses without their tokens, for a method but not for a model."""
        no_tokens = torch.empty(0, dtype=torch.long)
        tokens = int(lengths_B.sum())
        numbers_B = torch.arange(len(lengths_B), device=lengths_B.device)
        return cls(
            sequences=[no_tokens] * len(lengths_B),
            prompt_lengths_B=torch.zeros_like(lengths_B),
            lengths_B=lengths_B,
            groups_B=groups_B,
            rewards_B=rewards_B,
            right_B=right_B,
            base_right_B=ABSENT if base_right_B is None else base_right_B,
            answers_B=ABSENT if answers_B is None else answers_B,
            finished_B=finished_B,
            places_B=numbers_B if places_B is None else places_B,
            copy_of_B=numbers_B,  # without tokens, no two responses are known to be equal
            behaviour_logp_T=ABSENT if behaviour_logp_T is None else behaviour_logp_T,
            budget=budget,
            seed=seed,
            progress=progress,
            index_T=torch.arange(tokens, device=lengths_B.device),
        )

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def sizes(self) -> list[int]:
        """The tokens of each sequence, prompt and response; not by `len`, which takes microseconds on a tensor."""
        return (self.prompt_lengths_B + self.lengths_B).tolist()

    def grouped(self, x_B: Tensor) -> Tensor:
        """Return values of responses with a row for each group."""
        return x_B.view(int(self.groups_B[-1] - self.groups_B[0]) + 1, -1)

    @property
    def sequence_T(self) -> Tensor:
        """The number of each token's response."""
        return torch.arange(len(self), device=self.lengths_B.device).repeat_interleave(self.lengths_B)

    @property
    def within_T(self) -> Tensor:
        """The place of each token in its response, 0 ..."""
        return torch.arange(len(self.index_T), device=self.index_T.device) - self.starts_B[self.sequence_T]

    @property
    def starts_B(self) -> Tensor:
        """The place of each response's first token among the flat tokens."""
        return self.lengths_B.cumsum(0) - self.lengths_B

    def take(self, rows: Sequence[int] | Tensor) -> TokenBatch:
        """Return the responses with these numbers as a batch."""
        rows_B = torch.as_tensor(rows, dtype=torch.long, device=self.lengths_B.device)
        lengths_B = self.lengths_B[rows_B]
        within_T = torch.arange(int(lengths_B.sum()), device=rows_B.device)
        within_T = within_T - (lengths_B.cumsum(0) - lengths_B).repeat_interleave(lengths_B)
        tokens_T = self.starts_B[rows_B].repeat_interleave(lengths_B) + within_T
        columns: dict[str, Any] = {"sequences": [self.sequences[row] for row in rows]}
        # A field has an entry for each response (_B) or each token (_T), or else holds for any part.
        for name, x in vars(self).items():
            if name.endswith("_B"):
                columns[name] = x[rows_B]
            elif name.endswith("_T"):
                columns[name] = x[tokens_T]
        return dataclasses.replace(self, **columns)

    def split(self, parts: int) -> Iterator[TokenBatch]:
        """Yield mini-batches of equally many whole groups, in order."""
        groups = int(self.groups_B.max()) + 1  # of a whole batch, whose groups are numbered from 0
        assert groups % parts == 0
        per_part = groups // parts
        for part in range(parts):
            yield self.take(torch.nonzero(self.groups_B // per_part == part).flatten().tolist())

    @property
    def prompts_weigh(self) -> bool:
        """Whether prompts are so large a part of the tokens that it pays to run each one once for its whole group."""
        return bool(2 * self.prompt_lengths_B.sum() > self.lengths_B.sum())

    @property
    def long(self) -> bool:
        """Whether sequences are long on average."""
        return sum(self.sizes) >= LONG * len(self)

    def without_copies(self) -> tuple[TokenBatch, Tensor]:
        """Return each distinct response once, and the place among their tokens of each token of this batch."""
        distinct = Distinct.of(self.copy_of_B.tolist())
        once = self.take(distinct.first)
        number_B = torch.tensor(distinct.copy_of, device=self.lengths_B.device)
        return once, once.starts_B[number_B][self.sequence_T] + self.within_T

    def micro_batches(self, tokens: int, *, packing: bool = False) -> Iterator[TokenBatch]:
        """Yield parts of which up to `tokens` tokens are computed, padding included; a longer sequence is a part alone.

        Copies of a response are computed once, so they are in one part and count once. Long sequences are packed if the
        model allows it (`packing`). Groups stay together where a pass runs each prompt once: in packed parts, and where
        prompts weigh. Otherwise sequences of similar length do, for little padding.
        """
        distinct = Distinct.of(self.copy_of_B.tolist())
        copies, once = distinct.copies, self.take(distinct.first)
        sizes, packed = once.sizes, packing and once.long
        order = list(range(len(once)))
        if not packed and not once.prompts_weigh:
            order.sort(key=sizes.__getitem__)
        rows: list[int] = []
        count = longest = total = 0  # of the distinct sequences in `rows`, and the next one
        for number in order:
            length = sizes[number]
            count, longest, total = count + 1, max(longest, length), total + length
            computed = total if packed else longest * count
            if rows and computed > tokens:
                yield dataclasses.replace(self.take(rows), packed=packed)
                rows, count, longest, total = [], 1, length, length
            rows += copies[number]
        yield dataclasses.replace(self.take(rows), packed=packed)

    def idle(self) -> TokenBatch:
        """Return a micro-batch without response tokens, by which a rank with fewer of them joins the collectives.

        It is the shortest sequence, taken as a prompt, so that the pass costs little and has no gradient.
        """
        row = min(range(len(self)), key=self.sizes.__getitem__)
        part = self.take([row])
        nothing = slice(0, 0)
        return dataclasses.replace(
            part,
            prompt_lengths_B=part.prompt_lengths_B + part.lengths_B,
            lengths_B=torch.zeros_like(part.lengths_B),
            behaviour_logp_T=part.behaviour_logp_T[nothing],
            index_T=part.index_T[nothing],
        )

    def per_sequence(self, x_T: Tensor) -> Tensor:
        """Return the sum over each response's tokens."""
        return x_T.new_zeros(len(self)).index_add(0, self.sequence_T, x_T)

    # Seeded chance: the same for a response on any number of ranks, however the batch is split.

    def uniform_B(self, purpose: str) -> Tensor:
        """Return a random number from 0 to 1 for each response; each purpose has its own draws."""
        return torch.stack([draw[0] for draw in self._draws(purpose, "response", [1] * len(self))])

    def uniform_T(self, purpose: str) -> Tensor:
        """Return a random number from 0 to 1 for each token; each purpose has its own draws."""
        return torch.cat(self._draws(purpose, "token", self.lengths_B.tolist()))

    def _draws(self, purpose: str, of: str, counts: Sequence[int]) -> list[Tensor]:
        draws = []
        for place, count in zip(self.places_B.tolist(), counts, strict=True):
            # By the place among all ranks' responses, and NumPy's generator: the same on a CPU and on any GPU.
            generator = np.random.default_rng(seeds.derive(self.seed, purpose, of, place))
            draws.append(torch.from_numpy(generator.random(count)).to(self.lengths_B.device))
        return draws

    # Collectives, over the batches of all ranks. Every rank must call them: one that calls alone waits for the others
    # for ever.

    def global_mean(self, x_T: Tensor) -> Tensor:
        """Return the mean over the tokens of all ranks, in double, and 0 where there is none; a collective."""
        return self.global_sum(x_T) / max(self.global_tokens(), 1.0)

    def global_centered(self, x_T: Tensor) -> Tensor:
        """Return the values minus their mean over the tokens of all ranks, in double; a collective."""
        # The least value goes first: equal values are then 0, and so is their mean, which would round otherwise.
        least = min(ranks.each(x_T.min().item() if len(x_T) else inf))
        above_T = x_T.double() - least
        return above_T - self.global_mean(above_T)

    def global_std(self, x_T: Tensor) -> Tensor:
        """Return the population's standard deviation over the tokens of all ranks (n, not n - 1); a collective."""
        return self.global_mean(self.global_centered(x_T) ** 2).sqrt()

    def global_kth_largest(self, x_T: Tensor, k: int) -> Tensor:
        """Return the k-th largest value on all ranks, or -inf where there are fewer than k; a collective."""
        values_T = ranks.gather(x_T)
        return values_T.topk(k).values[-1] if 0 < k <= len(values_T) else x_T.new_tensor(float("-inf"))

    def global_sorted(self, x_T: Tensor) -> Tensor:
        """Return the values of all ranks, the largest first; a collective."""
        return ranks.gather(x_T).sort(descending=True).values

    def global_order(self, x_T: Tensor) -> Tensor:
        """Return the place of each token's value among those of all ranks, 0 for the largest; a collective.

        Of equal values the earlier response comes first, and in it the earlier token, so that ties do not depend on the
        number of ranks.
        """
        # Unique over all ranks and ascending in their common order, since no response is longer than the budget.
        token_T = self.places_B[self.sequence_T] * self.budget + self.within_T
        values_T, tokens_T = ranks.gather(x_T), ranks.gather(token_T)
        by_token = tokens_T.argsort()
        order = by_token[values_T[by_token].argsort(descending=True, stable=True)]
        place_T = torch.empty_like(order)
        place_T[order] = torch.arange(len(order), device=order.device)
        start = sum(ranks.each(len(x_T))[: ranks.own_rank()])
        return place_T[start : start + len(x_T)]

    def global_sum(self, x_T: Tensor) -> Tensor:
        """Return the sum over the tokens of all ranks, in double; a collective."""
        return ranks.sum_over_ranks(x_T.double().sum())

    def global_count(self, mask_T: Tensor) -> float:
        """Return the number of tokens in a mask on all ranks; a collective."""
        return float(ranks.sum_over_ranks(mask_T.sum()))

    def global_tokens(self) -> float:
        """Return the number of tokens on all ranks; a collective."""
        return self.global_count(torch.ones_like(self.index_T))

    def global_responses(self) -> float:
        """Return the number of responses on all ranks; a collective."""
        return self.global_count(self.lengths_B.new_ones(len(self)))


def answer_numbers(answers: Sequence[str | None], group: int) -> list[int]:
    """Return the number of each response's answer among those of its group, in order of appearance; -1 without one."""
    numbers = []
    for start in range(0, len(answers), group):
        by_answer: dict[str, int] = {}
        for answer in answers[start : start + group]:
            if answer is None:
                numbers.append(-1)
            else:
                numbers.append(by_answer.setdefault(answer, len(by_answer)))
    return numbers
