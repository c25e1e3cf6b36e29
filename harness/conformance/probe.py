"""Random rollout batches over a small vocabulary, and what a method makes of them.

A probe is small enough to hold the logits of all tokens, so that gradients by single logits can be compared. It is in
float64 unless asked otherwise: what differs by more than rounding differs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.base import seeds
from harness.batch import Rollout, TokenBatch, TokenStats
from harness.composition import Method, Signal
from harness.tokens.dense import filtered_logp

VOCABULARY = 7
LONGEST = 9  # tokens of a response
FARTHEST = 30.0  # size of a log ratio that is still to be met in earnest

Split = Callable[[TokenBatch], list[TokenBatch]]


def stats_of(logits_TV: Tensor, targets_T: Tensor) -> TokenStats:
    """Returns all that a policy with these logits says of the tokens; only the first two columns have a gradient."""
    logp_TV = logits_TV.log_softmax(-1)
    p_TV = logp_TV.exp()
    logp_T = logp_TV.gather(1, targets_T[:, None])[:, 0]
    return TokenStats(
        logp=logp_T,
        entropy=-(p_TV * logp_TV).sum(-1),
        sum_p2=(p_TV**2).sum(-1).detach(),
        sum_p2_logp=(p_TV**2 * logp_TV).sum(-1).detach(),
        min_p_logp=filtered_logp(logp_TV, logp_T).detach(),
    )


@dataclass(frozen=True)
class Probe:
    """Holds a rollout batch with the logits of the policy before the update, and of the policy some updates later."""

    batch: TokenBatch
    targets_T: Tensor
    old_logits_TV: Tensor
    logits_TV: Tensor
    values_T: Tensor
    ref_logp_T: Tensor

    @property
    def old(self) -> TokenStats:
        stats = stats_of(self.old_logits_TV, self.targets_T)
        return dataclasses.replace(stats, values=self.values_T, ref_logp=self.ref_logp_T)

    def before(self, needs: frozenset[str]) -> TokenStats:
        """Returns the columns that the trainer computes for these needs, and no others."""
        old, sums = self.old, "sum_p2" in needs
        return dataclasses.replace(
            old,
            sum_p2=old.sum_p2 if sums else None,
            sum_p2_logp=old.sum_p2_logp if sums else None,
            values=old.values if "values" in needs else None,
            ref_logp=old.ref_logp if "ref_logp" in needs else None,
            min_p_logp=old.min_p_logp if "min_p" in needs else None,
        )

    def during(self, needs: frozenset[str], logits_TV: Tensor, index_T: Tensor) -> TokenStats:
        """Returns the same of the present policy on some tokens, with gradient where `logits_TV` has one."""
        stats = stats_of(logits_TV[index_T], self.targets_T[index_T])
        entropy_T = stats.entropy if needs & {"entropy_grad", "entropy_now"} else None
        return TokenStats(stats.logp, entropy_T, ref_logp=self.ref_logp_T[index_T] if "ref_logp" in needs else None)

    def to(self, dtype: torch.dtype) -> Probe:
        """Returns the probe as a trainer that computes in this type has it."""

        def cast(x: Tensor) -> Tensor:
            return x.to(dtype) if x.is_floating_point() else x

        return self.changed(cast)

    def take(self, rows: Sequence[int]) -> Probe:
        """Returns whole groups, named by all their responses, as a batch of their own: in this order, each response
        with its place among those of all ranks."""
        part = self.batch.take(rows)
        numbers: dict[int, int] = {}
        groups = [numbers.setdefault(group, len(numbers)) for group in part.groups_B.tolist()]
        tokens_T = part.index_T
        batch = dataclasses.replace(
            part, groups_B=torch.tensor(groups), index_T=torch.arange(len(tokens_T)), budget=self.batch.budget
        )
        return Probe(batch, **{k: x[tokens_T] for k, x in vars(self).items() if isinstance(x, Tensor)})

    def cloned(self) -> Probe:
        """Returns a copy that shares no memory."""
        return self.changed(Tensor.clone)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Probe:
        """Returns the probe with a change to each tensor, but for the sequences."""
        columns: dict[str, Any] = {k: change(x) for k, x in vars(self.batch).items() if isinstance(x, Tensor)}
        batch = dataclasses.replace(self.batch, **columns)
        return Probe(batch, **{k: change(x) for k, x in vars(self).items() if isinstance(x, Tensor)})


def mixed(group: int, size: int) -> list[float]:
    """Returns the rewards of a group: none right in the first, one in the second ..., all in the last of a cycle."""
    right = group % (size + 1)
    return [float(i < right) for i in range(size)]


def probe(
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
    """Samples responses of 1 to `longest` tokens from a policy that is sure of most of them and not of others, as
    language models are, and lets the present policy be some steps away (`drift`, in logits)."""
    generator = torch.Generator().manual_seed(seeds.derive("probe", seed) % 2**32)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def whole(most: int, count: int) -> list[int]:
        return torch.randint(1, most + 1, (count,), generator=generator).tolist()

    lengths = whole(longest, groups * size)
    tokens = sum(lengths)
    old_logits_TV = sharp * normal(tokens, 1).exp() * normal(tokens, VOCABULARY)
    targets_T = old_logits_TV.softmax(-1).multinomial(1, generator=generator)[:, 0]
    drawn = iter(targets_T.tolist())
    responses = [[next(drawn) for _ in range(length)] for length in lengths]
    prompts = [whole(VOCABULARY - 1, 1 + group % 4) for group in range(groups)]
    given = [
        [
            Rollout(prompts[group], response, [0.0] * len(response), len(response) < longest)
            for response in responses[group * size : (group + 1) * size]
        ]
        for group in range(groups)
    ]
    scores = [score for group in range(groups) for score in rewards(group, size)]
    # Few different answers, so that some are equal; the longest responses have none.
    answers = [str(response[-1] % 3) if len(response) < longest else None for response in responses]
    batch = TokenBatch.of(given, scores, longest, "cpu", answers=answers, seed=seed, progress=progress)
    reference_TV = old_logits_TV + 0.3 * normal(tokens, VOCABULARY)
    logits_TV = old_logits_TV + drift * normal(tokens, VOCABULARY)
    values_T = 0.5 * normal(tokens)
    # The policy that sampled is an older one, as with `rollout.lag`.
    behaviour_logp_T = stats_of(old_logits_TV + 0.3 * normal(tokens, VOCABULARY), targets_T).logp
    return Probe(
        dataclasses.replace(batch, rewards_B=batch.rewards_B.double(), behaviour_logp_T=behaviour_logp_T),
        targets_T,
        old_logits_TV,
        logits_TV,
        values_T,
        stats_of(reference_TV, targets_T).logp,
    )


def far(given: Probe) -> Probe:
    """Returns the probe with a log ratio of +-FARTHEST at the first token of each response, by turns: one that was
    hardly possible and is certain now, or the reverse."""
    first_T = given.batch.within_T == 0
    rising_T = first_T & (given.batch.sequence_T % 2 == 0)
    rare_TV, sure_TV = (torch.zeros_like(given.logits_TV) for _ in range(2))
    rows = torch.arange(len(given.targets_T))
    rare_TV[rows, given.targets_T], sure_TV[rows, given.targets_T] = 1.8 - FARTHEST, FARTHEST

    def placed(logits_TV: Tensor, on_rising: Tensor, on_falling: Tensor) -> Tensor:
        falling_T = first_T & ~rising_T
        return torch.where(rising_T[:, None], on_rising, torch.where(falling_T[:, None], on_falling, logits_TV))

    return dataclasses.replace(
        given,
        old_logits_TV=placed(given.old_logits_TV, rare_TV, sure_TV),
        logits_TV=placed(given.logits_TV, sure_TV, rare_TV),
    )


def tied(given: Probe) -> Probe:
    """Returns the probe with tokens of three kinds alone, which are equal in all that a policy says of them."""
    kind_T = given.batch.index_T % 3
    columns: dict[str, Any] = {k: x[kind_T] for k, x in vars(given).items() if isinstance(x, Tensor)}
    return dataclasses.replace(given, **columns)


@dataclass(frozen=True)
class Outcome:
    """Holds what a method makes of a probe."""

    signal: Signal
    loss: float
    gradient_TV: Tensor  # by the logits of the present policy


def whole(minibatch: TokenBatch) -> list[TokenBatch]:
    """Leaves a mini-batch in one piece."""
    return [minibatch]


def outcome(method: Method, given: Probe, updates: int = 1, split: Split = whole) -> Outcome:
    """Does what the trainer does between rollouts and the optimiser, with all parts of all mini-batches at once."""
    old, batch = given.before(method.needs), given.batch
    minibatches = list(batch.split(updates))
    signal = method.signal(old, batch, minibatches)
    logits_TV = given.logits_TV.clone().requires_grad_()
    losses = []
    for minibatch in minibatches:
        fixed = stepped(method, given, signal, minibatch)
        losses.append(
            torch.stack(
                [
                    method.loss(given.during(method.needs, logits_TV, part.index_T), fixed.at(part.index_T), part)
                    for part in split(minibatch)
                ]
            ).sum()
        )
    loss = torch.stack(losses).sum()
    gradient_TV = torch.zeros_like(logits_TV)
    if loss.requires_grad:
        (gradient_TV,) = torch.autograd.grad(loss, logits_TV, allow_unused=True, materialize_grads=True)
    return Outcome(signal, loss.item(), gradient_TV)


def stepped(method: Method, given: Probe, signal: Signal, minibatch: TokenBatch) -> Signal:
    """Returns the signal with the marks of one optimiser step, for a method that has such."""
    if not method.marks_steps:
        return signal
    everything = method.needs | {"entropy_now"}  # which the trainer computes then, whoever asked
    with torch.no_grad():
        now = given.during(everything, given.logits_TV, minibatch.index_T)
    return method.for_step(now, signal, minibatch)
