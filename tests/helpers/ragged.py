"""Random ragged batches in float64 with a policy's statistics, for tests that compare with loops."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harness.conformance.probe import stats_of
from harness.methods.batch import Rollout, TokenBatch, TokenStats

VOCABULARY = 7


def rollouts(seed: int, groups: int = 4, size: int = 3, longest: int = 9) -> list[list[Rollout]]:
    generator = random.Random(seed)

    def tokens(length: int) -> list[int]:
        return [generator.randrange(VOCABULARY) for _ in range(length)]

    def rollout() -> Rollout:
        response = tokens(generator.randint(1, longest))
        return Rollout(tokens(generator.randint(1, 5)), response, [-generator.random() for _ in response], True)

    return [[rollout() for _ in range(size)] for _ in range(groups)]


def answers_of(groups: Sequence[Sequence[Rollout]]) -> list[str | None]:
    """Makes up few different answers, so that some are equal; long responses have none."""
    responses = [rollout.response for group in groups for rollout in group]
    return [str(response[0] % 2) if len(response) < 8 else None for response in responses]


def batch_of(
    groups: Sequence[Sequence[Rollout]], rewards: Sequence[float], budget: int = 16, **more: Any
) -> TokenBatch:
    batch = TokenBatch.of(groups, rewards, budget, "cpu", **more)
    return dataclasses.replace(batch, rewards_B=torch.tensor(rewards, dtype=torch.float64))


@dataclasses.dataclass
class Case:
    """A rollout batch, with the policy before the update and some updates later."""

    groups: list[list[Rollout]]
    batch: TokenBatch
    targets_T: Tensor
    old_logits_TV: Tensor
    logits_TV: Tensor  # a leaf
    old: TokenStats

    def current(self, part: TokenBatch | None = None) -> TokenStats:
        index_T = self.batch.index_T if part is None else part.index_T
        stats = stats_of(self.logits_TV[index_T], self.targets_T[index_T])
        assert self.old.ref_logp is not None
        return dataclasses.replace(stats, ref_logp=self.old.ref_logp[index_T])


def case(seed: int, *, drift: float = 1.0, groups: int = 4, size: int = 3, longest: int = 9) -> Case:
    """Sample tokens from a policy that is sure of some tokens only; the first group has no signal."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    made = rollouts(seed, groups, size, longest)
    tokens = sum(len(rollout.response) for group in made for rollout in group)
    old_logits_TV = 2 * normal(tokens, 1).exp() * normal(tokens, VOCABULARY)
    targets_T = old_logits_TV.softmax(-1).multinomial(1, generator=generator)[:, 0]
    sampled = iter(targets_T.tolist())
    made = [
        [dataclasses.replace(rollout, response=[next(sampled) for _ in rollout.response]) for rollout in group]
        for group in made
    ]
    rewards = [float(i >= size and i % size < 1 + i // size % (size - 1)) for i in range(groups * size)]
    logits_TV = (old_logits_TV + drift * normal(tokens, VOCABULARY)).requires_grad_()
    old = stats_of(old_logits_TV, targets_T)
    reference = stats_of(old_logits_TV + 0.3 * normal(tokens, VOCABULARY), targets_T)
    old = dataclasses.replace(old, values=0.5 * normal(tokens), ref_logp=reference.logp)
    base_right = [(1 + group % 7) / 8 for group in range(groups)]
    batch = batch_of(made, rewards, base_right=base_right, answers=answers_of(made))
    return Case(made, batch, targets_T, old_logits_TV, logits_TV, old)
