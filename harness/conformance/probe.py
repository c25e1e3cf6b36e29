"""The method that is checked, random rollout batches over a small vocabulary, and the comparison of outcomes on them.

A probe is small enough to hold the logits of all tokens, so that gradients by single logits can be compared. It is in
float64 unless asked otherwise, so that any difference larger than rounding is real.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from harness.base import seeds
from harness.base.errors import UserError
from harness.base.task import Answer, Judged, Problem, Verdict
from harness.methods.batch import Rollout, TokenBatch, TokenStats
from harness.methods.composition import BEFORE, DURING, Method, Signal, Table, overrides
from harness.tokens.head import Head
from harness.tokens.statistics import token_stats
from harness.train.collect import Answered, Collected
from harness.train.record import Updates, record_of_step

VOCABULARY = 7
LONGEST = 9  # tokens of a response
FARTHEST = 100.0  # a log ratio whose exponential overflows in float32

Split = Callable[[TokenBatch], list[TokenBatch]]


def stats_of(logits_TV: Tensor, targets_T: Tensor) -> TokenStats:
    """Return all statistics of the tokens under these logits; only logp and the entropies have a gradient."""
    identity = Head(torch.eye(logits_TV.shape[1], dtype=logits_TV.dtype))
    return token_stats(
        logits_TV, identity, targets_T, 1.0, entropy_grad=True, sum_p2=True, min_p=True, likeliest_entropy=True
    )


@dataclass(frozen=True)
class Probe:
    """A rollout batch with the logits of the policy before the update, and of the policy some updates later."""

    batch: TokenBatch
    targets_T: Tensor
    old_logits_TV: Tensor
    logits_TV: Tensor
    values_T: Tensor
    ref_logp_T: Tensor

    @property
    def old(self) -> TokenStats:
        """All statistics of the policy before the update."""
        stats = stats_of(self.old_logits_TV, self.targets_T)
        return replace(stats, values=self.values_T, ref_logp=self.ref_logp_T)

    def before(self, needs: frozenset[str]) -> TokenStats:
        """Return only the columns that the trainer computes for these needs."""
        absent: dict[str, Any] = dict.fromkeys(
            column for column, any_of in BEFORE.items() if any_of and needs.isdisjoint(any_of)
        )
        return replace(self.old, **absent)

    def during(self, needs: frozenset[str], logits_TV: Tensor, index_T: Tensor) -> TokenStats:
        """Return those columns of the present policy on some tokens, with gradient where `logits_TV` has one."""
        stats = replace(stats_of(logits_TV[index_T], self.targets_T[index_T]), ref_logp=self.ref_logp_T[index_T])
        computed = [column for column, any_of in DURING.items() if not any_of or needs.intersection(any_of)]
        return TokenStats(**{column: vars(stats)[column] for column in computed})

    def to(self, dtype: torch.dtype) -> Probe:
        """Return the probe as a trainer that computes in this type has it."""

        def cast(owner: Probe | TokenBatch) -> dict[str, Any]:
            return {name: x.to(dtype) for name, x in tensors_in(owner).items() if x.is_floating_point()}

        return replace(self, **cast(self), batch=replace(self.batch, **cast(self.batch)))

    def take(self, rows: Sequence[int]) -> Probe:
        """Return whole groups, given by the rows of all their responses, as a batch of their own, in this order.

        Each response keeps its place among the responses of all ranks.
        """
        part = self.batch.take(rows)
        # Groups and tokens are numbered from 0 again, as in the rollout batch of a rank.
        new_numbers: dict[int, int] = {}  # of the groups, in order of appearance
        groups = [new_numbers.setdefault(group, len(new_numbers)) for group in part.groups_B.tolist()]
        tokens_T = part.index_T
        batch = replace(part, groups_B=torch.tensor(groups), index_T=torch.arange(len(tokens_T)))
        columns = {name: x[tokens_T] for name, x in tensors_in(self).items()}
        return Probe(batch, **columns)


def tensors_in(owner: object) -> dict[str, Tensor]:
    return {name: value for name, value in vars(owner).items() if isinstance(value, Tensor)}


def mixed(group: int, size: int) -> list[float]:
    """Return the rewards of a group: none right in the first, one in the second ..., all in the last of a cycle."""
    right = group % (size + 1)
    return [float(i < right) for i in range(size)]


def random_probe(
    seed: int = 0,
    *,
    groups: int = 8,
    size: int = 4,
    longest: int = LONGEST,
    drift: float = 0.5,
    rewards: Callable[[int, int], list[float]] = mixed,
    sharp: float = 8.0,
    progress: float = 0.3,
) -> Probe:
    """Sample responses of 1 to `longest` tokens from a random policy, and let it drift by `drift` (in logits).

    Like a language model, the policy is sure of most tokens and unsure of others.
    """
    generator = torch.Generator().manual_seed(seeds.derive("probe", seed) % 2**32)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def integers(most: int, count: int) -> list[int]:
        return torch.randint(1, most + 1, (count,), generator=generator).tolist()

    lengths = integers(longest, groups * size)
    tokens = sum(lengths)
    # Each token has a temperature of its own: some distributions are nearly certain, others nearly flat.
    old_logits_TV = sharp * normal(tokens, 1).exp() * normal(tokens, VOCABULARY)
    targets_T = old_logits_TV.softmax(-1).multinomial(1, generator=generator)[:, 0]
    # Few different answers, so that some are equal; the longest responses have none.
    responses = [tokens_of_one.tolist() for tokens_of_one in targets_T.split(lengths)]
    answers = [str(response[-1] % 3) if len(response) < longest else None for response in responses]
    rollouts: list[list[Rollout]] = []
    scores: list[float] = []
    for group in range(groups):
        prompt = integers(VOCABULARY - 1, 1 + group % 4)
        of_group = responses[group * size : (group + 1) * size]
        # behaviour_logp_T replaces the log p of 0 below.
        rollouts.append([Rollout(prompt, each, [0.0] * len(each), len(each) < longest) for each in of_group])
        scores += rewards(group, size)
    base_right = [(1 + group % 7) / 8 for group in range(groups)]
    batch = TokenBatch.of(
        rollouts, scores, longest, "cpu", base_right=base_right, answers=answers, seed=seed, progress=progress
    )
    reference_TV = old_logits_TV + 0.3 * normal(tokens, VOCABULARY)
    logits_TV = old_logits_TV + drift * normal(tokens, VOCABULARY)
    values_T = 0.5 * normal(tokens)
    # The policy that sampled is an older one, as with `rollout.lag`.
    behaviour_logp_T = stats_of(old_logits_TV + 0.3 * normal(tokens, VOCABULARY), targets_T).logp
    return Probe(
        replace(batch, rewards_B=batch.rewards_B.double(), behaviour_logp_T=behaviour_logp_T),
        targets_T,
        old_logits_TV,
        logits_TV,
        values_T,
        stats_of(reference_TV, targets_T).logp,
    )


def far(probe: Probe) -> Probe:
    """Return the probe with a log ratio of FARTHEST at the first token of each response, up and down by turns.

    That token was hardly possible and is certain now, or the reverse.
    """
    first_T = probe.batch.within_T == 0
    even_T = probe.batch.sequence_T % 2 == 0
    rising_T, falling_T = first_T & even_T, first_T & ~even_T
    rows = torch.arange(len(probe.targets_T))
    rare_TV, sure_TV = torch.zeros_like(probe.logits_TV), torch.zeros_like(probe.logits_TV)
    rare_TV[rows, probe.targets_T] = 1.8 - FARTHEST  # log p = -FARTHEST: the other 6 logits add log 6 = 1.8
    sure_TV[rows, probe.targets_T] = FARTHEST

    def replaced(logits_TV: Tensor, on_rising: Tensor, on_falling: Tensor) -> Tensor:
        with_falling = torch.where(falling_T[:, None], on_falling, logits_TV)
        return torch.where(rising_T[:, None], on_rising, with_falling)

    return replace(
        probe,
        old_logits_TV=replaced(probe.old_logits_TV, rare_TV, sure_TV),
        logits_TV=replaced(probe.logits_TV, sure_TV, rare_TV),
    )


def emptied(probe: Probe, rows: Collection[int]) -> Probe:
    """Return the probe with no tokens in the responses of these rows, as where a trainer masks a response."""
    empty_B = torch.zeros(len(probe.batch), dtype=torch.bool)
    empty_B[list(rows)] = True
    kept_T = ~empty_B[probe.batch.sequence_T]
    columns: dict[str, Any] = {name: x[kept_T] for name, x in tensors_in(probe).items()}
    sequences = list(probe.batch.sequences)
    for row in rows:
        sequences[row] = sequences[row][: probe.batch.prompt_lengths_B[row]]
    batch = replace(
        probe.batch,
        sequences=sequences,
        lengths_B=probe.batch.lengths_B.masked_fill(empty_B, 0),
        behaviour_logp_T=probe.batch.behaviour_logp_T[kept_T],
        index_T=torch.arange(int(kept_T.sum())),
    )
    return Probe(batch, **columns)


def tied(probe: Probe) -> Probe:
    """Return the probe with only three kinds of tokens; those of a kind agree in all statistics."""
    kind_T = probe.batch.index_T % 3
    columns: dict[str, Any] = {name: x[kind_T] for name, x in tensors_in(probe).items()}
    return replace(probe, **columns)


@dataclass(frozen=True)
class Outcome:
    """The signal, the loss and the gradient of a method on a probe."""

    signal: Signal
    loss: float
    gradient_TV: Tensor  # by the logits of the present policy


def whole(minibatch: TokenBatch) -> list[TokenBatch]:
    return [minibatch]


def signal_on(method: Method, probe: Probe) -> Signal:
    """Return the signal of a whole probe as one mini-batch, with the marks of its step."""
    signal = method.signal(probe.before(method.needs), probe.batch, [probe.batch])
    return with_step_marks(method, probe, signal, probe.batch)


def compute_outcome(method: Method, probe: Probe, updates: int = 1, split: Split = whole) -> Outcome:
    """Compute what the trainer does between rollouts and the optimizer, with all parts of all mini-batches at once."""
    old, batch = probe.before(method.needs), probe.batch
    minibatches = list(batch.split(updates))
    signal = method.signal(old, batch, minibatches)
    logits_TV = probe.logits_TV.clone().requires_grad_()
    losses = []
    for minibatch in minibatches:
        fixed = with_step_marks(method, probe, signal, minibatch)
        part_losses = []
        for part in split(minibatch):
            current = probe.during(method.needs, logits_TV, part.index_T)
            part_losses.append(loss_of(method, probe, current, fixed.at(part.index_T), part))
        losses.append(torch.stack(part_losses).sum())
    loss = torch.stack(losses).sum()
    return Outcome(signal, loss.item(), gradient_by(logits_TV, loss))


def loss_of(method: Method, probe: Probe, current: TokenStats, signal: Signal, part: TokenBatch) -> Tensor:
    """Return a method's loss of some tokens, which also stand for right responses of the model before training."""
    of_base = method.base_loss(current.logp, probe.ref_logp_T[part.index_T], signal.term_scale_T)
    return method.loss(current, signal, part) + of_base


def gradient_by(x: Tensor, value: Tensor) -> Tensor:
    """Return the gradient of a value by a leaf, 0 where the value does not depend on it."""
    if not value.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(value, x, allow_unused=True, materialize_grads=True)[0]


def with_step_marks(method: Method, probe: Probe, signal: Signal, minibatch: TokenBatch) -> Signal:
    """Return the signal with the marks of one optimizer step, if the method has any."""
    if not method.marks_steps:
        return signal
    # The trainer computes the present entropy for such a method whether or not it is declared.
    needs = method.needs | {"entropy_now"}
    current = probe.during(needs, probe.logits_TV, minibatch.index_T)
    return method.for_step(current, signal, minibatch)


# The method and its findings

CLOSE = 1e-9  # relative: a larger difference in float64 does not come from rounding
FINITE = "clamp before exp and log, add a small number before dividing, raise min_group where one is too few"
# Mean entropies that a control with a memory observes in turn: constant, far above any target, and falling again.
ENTROPIES = (0.01, 0.01, 2.5, 0.3, 0.05)

Result = str | tuple[str, dict[str, float]]  # of a check that passed: what it saw, and perhaps measurements


class Failed(Exception):
    """The mistake that a check has detected; `advice` replaces that of the check where it would mislead."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


def first_line_of(error: Exception) -> str:
    """Return the first line of an error's message, with its type unless the error was written for users."""
    line = str(error).strip().partition("\n")[0]
    return line if isinstance(error, UserError | Failed) else f"{type(error).__name__}: {line}"


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    check: str
    passed: bool
    message: str  # what was seen, or what is wrong
    advice: str = ""  # how to fix it
    numbers: dict[str, float] = field(default_factory=dict)  # measurements


def finding_of(name: str, advice: str, run_check: Callable[[], Result]) -> Finding:
    """Run a check, and return any exception of the method as a finding."""
    try:
        result = run_check()
    except Exception as error:
        better_advice = error.advice if isinstance(error, Failed) else ""
        return Finding(name, False, first_line_of(error), better_advice or advice)
    message, numbers = (result, {}) if isinstance(result, str) else result
    return Finding(name, True, message, numbers=numbers)


@dataclass
class Subject:
    """The method that is checked; each check makes a new instance, so that none inherits another one's memory."""

    spec: str
    table: Table

    def make(self) -> Method:
        return Method.of(self.spec, self.table)

    @cached_property
    def size(self) -> int:
        """The number of responses to a prompt."""
        return max(4, self.make().min_group)

    def probe(self, seed: int = 0, **options: Any) -> Probe:
        """Return a random probe with groups that are large enough for the method."""
        return random_probe(seed, **{"size": self.size, **options})  # `options` may have a size too, which then counts

    def step(self, number: int) -> Probe:
        """Return the batch of a step; responses and the share of right ones differ from step to step."""
        return self.probe(20 + number, rewards=lambda group, size: mixed(group + number, size))

    @cached_property
    def edges(self) -> dict[str, Probe]:
        """Batches of the rare kinds that can stop a run late."""
        smallest = self.make().min_group
        even, empty = self.probe(6), self.probe(10)
        equally_likely = replace(even, old_logits_TV=0 * even.old_logits_TV, logits_TV=0 * even.logits_TV)
        return {
            "no response is right": self.probe(1, rewards=lambda group, size: [0.0] * size),
            "every response is right": self.probe(2, rewards=lambda group, size: [1.0] * size),
            "responses of one token": self.probe(3, longest=1),
            "one group of the least size": self.probe(
                4, groups=1, size=smallest, rewards=lambda group, size: [1.0] + [0.0] * (size - 1)
            ),
            "the policy has not moved": self.probe(5, drift=0.0),
            "all tokens are equally likely": equally_likely,
            "the policy is sure of every token": self.probe(7, sharp=400.0),
            f"log ratios of +-{FARTHEST:.0f}": far(self.probe(8)),
            # Right and wrong ones, the first and the last among them.
            "some responses are empty": emptied(empty, [*range(0, len(empty.batch), 3), len(empty.batch) - 1]),
            "all responses are empty": emptied(empty, range(len(empty.batch))),
            "the first step": self.probe(9, progress=0.0),
            "the last step": self.probe(9, progress=0.999),
        }

    def moments(self) -> Iterator[tuple[str, Method, Probe]]:
        """Yield the edges in float64 and float32, each with a method whose memory has observed some steps."""
        for name, probe in self.edges.items():
            for dtype in (torch.float64, torch.float32):
                method = self.make()
                if any(overrides(control, "observe") for control in method.controls.values()):
                    for entropy in ENTROPIES[:2]:
                        method.observe(step_record(method, self.probe(), entropy))
                yield f"{name} (in {str(dtype).removeprefix('torch.')})", method, probe.to(dtype)


def require_finite(name: str, *values: Tensor | float) -> None:
    """Refuse NaN and infinity, with which every comparison is meaningless."""
    for value in values:
        if not torch.isfinite(torch.as_tensor(value)).all():
            raise Failed(f"{name} is not finite on an ordinary batch", FINITE)


def near(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal except for rounding."""
    scale = torch.cat([one.flatten(), other.flatten()]).abs().max().item() if one.numel() else 0.0
    # Relative to the largest element too: a small one may be left over from large ones. 1e-15 is for tensors near 0.
    return bool(torch.isclose(one, other, rtol=CLOSE, atol=CLOSE * scale + 1e-15).all())


def require_equal(expected: Outcome, actual: Outcome, tokens: Tensor | None, where: str) -> None:
    """Refuse a different loss or gradient; `tokens` are the places in `expected` of the tokens of `actual`."""
    require_finite("the loss", expected.loss, actual.loss)
    require_finite("the gradient", expected.gradient_TV, actual.gradient_TV)
    if not math.isclose(expected.loss, actual.loss, rel_tol=CLOSE, abs_tol=1e-12):
        raise Failed(f"the loss is {actual.loss:.6g} {where}, and {expected.loss:.6g} without that")
    gradient_TV = expected.gradient_TV if tokens is None else expected.gradient_TV[tokens]
    if not near(gradient_TV, actual.gradient_TV):
        size = (gradient_TV - actual.gradient_TV).norm() / max(gradient_TV.norm().item(), 1e-300)
        raise Failed(f"the gradient differs {where} (by {size:.1%} of its size)")


def identical(one: Outcome, other: Outcome) -> bool:
    """Return whether two outcomes have the same bits."""
    require_finite("the loss", one.loss, other.loss)
    require_finite("the gradient", one.gradient_TV, other.gradient_TV)
    return one.loss == other.loss and torch.equal(one.gradient_TV, other.gradient_TV)


def singly(batch: TokenBatch) -> list[TokenBatch]:
    """Split a batch into single responses, the last one first."""
    return [batch.take([row]) for row in reversed(range(len(batch)))]


def unevenly(batch: TokenBatch) -> list[TokenBatch]:
    """Split a batch into three parts that mix the groups, and one without tokens.

    A rank gets such an empty part when other ranks have more parts.
    """
    parts = [batch.take(list(range(start, len(batch), 3))) for start in range(3)]
    return [*parts, batch.idle()]


def step_record(method: Method, probe: Probe, entropy: float | None = None) -> dict[str, float]:
    """Return the record of a step as the trainer logs it; `entropy` replaces the mean entropy."""
    outcome = compute_outcome(method, probe, updates=2)
    batch, updates = probe.batch, Updates()
    for minibatch in batch.split(2):
        fixed = with_step_marks(method, probe, outcome.signal, minibatch).at(minibatch.index_T)
        current = probe.during(method.needs, probe.logits_TV, minibatch.index_T)
        updates.add_part(method, current, fixed, minibatch)
    updates.add_update(outcome.loss, outcome.gradient_TV.norm().item())
    generated = {"tokens/generated": batch.global_tokens()}
    record = record_of_step(method, batch, outcome.signal, collected(batch), {}, updates, {}, generated)
    return record if entropy is None else record | {"entropy/mean": entropy}


def collected(batch: TokenBatch) -> Collected:
    """Return the judged responses of a batch; each response is its own answer."""
    judged = []
    prompts = batch.prompt_lengths_B.tolist()
    for sequence, prompt, right in zip(batch.sequences, prompts, batch.right_B.tolist(), strict=True):
        text = str(sequence[prompt:].tolist())
        verdict = Verdict.RIGHT if right else Verdict.WRONG
        judged.append(Judged(verdict, Answer(text, len(text)), goes_on=False))
    answered = []
    for place, lengths in enumerate(batch.grouped(batch.lengths_B).tolist()):
        group = judged[place * len(lengths) : (place + 1) * len(lengths)]
        answered.append(Answered(place, Problem(f"{place}", "", ""), [], group, lengths))
    return Collected(answered, generated=0, lag=0, record={})
