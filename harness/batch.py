"""The data that flows: a Rollout is one response, a TokenBatch all responses of a step, TokenStats what the policy
says of their tokens.

Response tokens are kept flat, one after the other (`_T`), each with the number of its response (`sequence_T`).
Prompts and padding never enter these vectors, so every entry is a valid token: it counts in denominators and
metrics. Whose gradient counts is another question, answered by a method's weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.base import ranks


@dataclass(frozen=True)
class Rollout:
    prompt: list[int]
    response: list[int]  # with the end-of-sequence token, if it was sampled
    logp: list[float]  # of the engine that sampled, at its temperature
    finished: bool  # ended by end-of-sequence; otherwise cut off at the length limit


@dataclass(frozen=True)
class TokenStats:
    """What the policy says of each token, at the sampling temperature. Fields that nobody asked for are None."""

    logp: Tensor
    entropy: Tensor | None = None  # H over the full vocabulary
    sum_p2: Tensor | None = None
    sum_p2_logp: Tensor | None = None
    values: Tensor | None = None  # of a critic
    ref_logp: Tensor | None = None  # of the reference model

    @classmethod
    def cat(cls, parts: Sequence[TokenStats]) -> TokenStats:
        columns: dict[str, list[Any]] = {name: [vars(part)[name] for part in parts] for name in vars(parts[0])}
        joined: dict[str, Any] = {name: None if xs[0] is None else torch.cat(xs) for name, xs in columns.items()}
        return cls(**joined)

    def at(self, index_T: Tensor) -> TokenStats:
        taken: dict[str, Any] = {name: None if x is None else x[index_T] for name, x in vars(self).items()}
        return TokenStats(**taken)

    @property
    def discriminator(self) -> Tensor:
        """S* = p (H + log p)."""
        assert self.entropy is not None
        return self.logp.exp() * (self.entropy + self.logp)

    @property
    def expected_discriminator(self) -> Tensor:
        """N = E_{i~p}[S_i] = H sum p^2 + sum p^2 log p."""
        assert self.entropy is not None
        assert self.sum_p2 is not None
        assert self.sum_p2_logp is not None
        return self.entropy * self.sum_p2 + self.sum_p2_logp


@dataclass(frozen=True)
class TokenBatch:
    """Responses in order, whole groups one after the other; also any part of such a batch (see `take`)."""

    sequences: list[Tensor]  # prompt and response tokens of each response
    prompt_lengths_B: Tensor
    lengths_B: Tensor  # of the responses
    groups_B: Tensor  # number of the prompt that each response answers, 0 ...
    rewards_B: Tensor
    behaviour_logp_T: Tensor
    budget: int  # the most tokens a response may have
    index_T: Tensor  # where the tokens of this part stand in the whole batch

    @classmethod
    def of(cls, groups: Sequence[Sequence[Rollout]], rewards: Sequence[float], budget: int, device: str) -> TokenBatch:
        rollouts = [rollout for group in groups for rollout in group]
        lengths_B = torch.tensor([len(r.response) for r in rollouts], device=device)
        sizes = [len(r.prompt) + len(r.response) for r in rollouts]
        tokens = [token for r in rollouts for part in (r.prompt, r.response) for token in part]
        return cls(
            sequences=list(torch.tensor(tokens).split(sizes)),  # quicker than one by one
            prompt_lengths_B=torch.tensor([len(r.prompt) for r in rollouts], device=device),
            lengths_B=lengths_B,
            groups_B=torch.tensor([i for i, group in enumerate(groups) for _ in group], device=device),
            rewards_B=torch.tensor(rewards, dtype=torch.float32, device=device),
            behaviour_logp_T=torch.tensor([x for r in rollouts for x in r.logp], device=device),
            budget=budget,
            index_T=torch.arange(int(lengths_B.sum()), device=device),
        )

    def __len__(self) -> int:
        return len(self.sequences)

    def grouped(self, x_B: Tensor) -> Tensor:
        """One row a group."""
        return x_B.view(int(self.groups_B[-1] - self.groups_B[0]) + 1, -1)

    @property
    def sequence_T(self) -> Tensor:
        """Number of the response that each token belongs to."""
        return torch.arange(len(self), device=self.lengths_B.device).repeat_interleave(self.lengths_B)

    @property
    def within_T(self) -> Tensor:
        """Place of each token in its response, 0 ..."""
        return torch.arange(len(self.index_T), device=self.index_T.device) - self.starts_B[self.sequence_T]

    @property
    def starts_B(self) -> Tensor:
        """Where each response begins among the flat tokens."""
        return self.lengths_B.cumsum(0) - self.lengths_B

    def take(self, rows: Sequence[int]) -> TokenBatch:
        """The responses with these numbers, as a batch of their own."""
        rows_B = torch.as_tensor(rows, device=self.lengths_B.device)
        lengths_B = self.lengths_B[rows_B]
        within_T = torch.arange(int(lengths_B.sum()), device=rows_B.device)
        within_T = within_T - (lengths_B.cumsum(0) - lengths_B).repeat_interleave(lengths_B)
        tokens_T = self.starts_B[rows_B].repeat_interleave(lengths_B) + within_T
        return TokenBatch(
            sequences=[self.sequences[row] for row in rows],
            prompt_lengths_B=self.prompt_lengths_B[rows_B],
            lengths_B=lengths_B,
            groups_B=self.groups_B[rows_B],
            rewards_B=self.rewards_B[rows_B],
            behaviour_logp_T=self.behaviour_logp_T[tokens_T],
            budget=self.budget,
            index_T=self.index_T[tokens_T],
        )

    def split(self, parts: int) -> Iterator[TokenBatch]:
        """Mini-batches of whole groups: each gets the same number of them, in order."""
        groups = int(self.groups_B.max()) + 1
        assert groups % parts == 0
        per_part = groups // parts
        for part in range(parts):
            yield self.take(torch.nonzero(self.groups_B // per_part == part).flatten().tolist())

    @property
    def prompts_weigh(self) -> bool:
        """Whether prompts are so large a part of the tokens that it pays to run each once for its whole group."""
        return bool(2 * self.prompt_lengths_B.sum() > self.lengths_B.sum())

    def micro_batches(self, tokens: int) -> Iterator[TokenBatch]:
        """Parts whose padded size stays within `tokens`: groups together where prompts weigh, else similar lengths."""
        rows: list[int] = []
        longest = 0
        order = range(len(self))
        for row in order if self.prompts_weigh else sorted(order, key=lambda row: len(self.sequences[row])):
            longest = max(longest, len(self.sequences[row]))
            if rows and longest * (len(rows) + 1) > tokens:
                yield self.take(rows)
                rows, longest = [], len(self.sequences[row])
            rows.append(row)
        yield self.take(rows)

    def idle(self) -> TokenBatch:
        """Its shortest sequence, none of whose tokens are asked for: a pass over it gives nothing to anyone."""
        row = min(range(len(self)), key=lambda row: len(self.sequences[row]))
        part = self.take([row])
        nothing = slice(0, 0)
        return dataclasses.replace(
            part,
            prompt_lengths_B=part.prompt_lengths_B + part.lengths_B,
            lengths_B=torch.zeros_like(part.lengths_B),
            behaviour_logp_T=part.behaviour_logp_T[nothing],
            index_T=part.index_T[nothing],
        )

    # Statistics over the whole batch, on all ranks.

    def per_sequence(self, x_T: Tensor) -> Tensor:
        """The sum over each response's tokens."""
        return x_T.new_zeros(len(self)).index_add(0, self.sequence_T, x_T)

    def mean(self, x_T: Tensor) -> Tensor:
        return ranks.total(x_T.double().sum()) / self.tokens

    def std(self, x_T: Tensor) -> Tensor:
        """The population's (divided by n, not n - 1)."""
        return self.mean((x_T - self.mean(x_T)) ** 2).sqrt()

    def kth_largest(self, x_T: Tensor, k: int) -> Tensor:
        """The k-th largest value, k = 1 being the largest; -inf where there are fewer than k."""
        values_T = ranks.gather(x_T)
        return values_T.topk(k).values[-1] if 0 < k <= len(values_T) else x_T.new_tensor(float("-inf"))

    def count(self, mask_T: Tensor) -> float:
        return float(ranks.total(mask_T.sum()))

    @property
    def tokens(self) -> float:
        return self.count(torch.ones_like(self.index_T))

    @property
    def responses(self) -> float:
        return self.count(self.lengths_B.new_ones(len(self)))
