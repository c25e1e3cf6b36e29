"""Right responses of the model before training, of which some methods train on a few in each optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harness import ranks
from harness.base import seeds
from harness.base.errors import UserError
from harness.base.task import Problem
from harness.methods.batch import Rollout, TokenBatch
from harness.train.filter import Asker
from harness.train.policy import Policy


@dataclass(frozen=True)
class BaseResponses:
    """The responses, the same on all ranks, with their tokens' log p by the model before training."""

    responses: Sequence[Rollout]
    base_logp: Sequence[Tensor]
    seed: int

    @classmethod
    def of(cls, responses: Sequence[Rollout], policy: Policy, seed: int) -> BaseResponses:
        """Return responses of the model before training, which `policy` still is; a collective."""
        return cls(responses, ranks.shared_work(partial(logp_of, policy), responses, {}), seed)

    def batch(self, update: int, count: int, budget: int, device: str) -> tuple[TokenBatch, Tensor]:
        """Return this rank's share of the responses of an update, and their tokens' log p before training.

        The updates take `count` responses each, and all responses come once before any comes again.
        """
        count = max(count, ranks.count())
        places = range(update * count + ranks.own_rank(), (update + 1) * count, ranks.count())
        numbers = seeds.in_passes(places, len(self.responses), "base responses", self.seed)
        base_logp_T = torch.cat([self.base_logp[number] for number in numbers]).to(device)
        return batch_of([self.responses[number] for number in numbers], budget, device), base_logp_T


def right_responses(asker: Asker, problems: Sequence[Problem], seed: int, say: Callable[[str], None]) -> list[Rollout]:
    """Sample a response to each of some easy problems, and return the right ones; a collective."""
    answered = ranks.shared_work(asker.responses_if_right, problems, {"seed": seed})
    right = [response for response in answered if response is not None]
    if len(right) < ranks.count():
        raise UserError(
            f"the model before training has {len(right)} right responses to train on, one to each of {len(problems)} "
            f"problems of {asker.task.name} that are too easy for train.filter; allowed: a lower train.filter.high"
        )
    if ranks.own_rank() == 0:
        say(f"right responses of the model before training: {len(right):,}, to {len(problems):,} easy problems")
    return right


def logp_of(policy: Policy, responses: Sequence[Rollout]) -> list[Tensor]:
    """Return the log p of each response's tokens, on the CPU."""
    batch = batch_of(responses, max(len(response.response) for response in responses), policy.device)
    return list(policy.stats(batch, entropy=False).logp.cpu().split(batch.lengths_B.tolist()))


def batch_of(responses: Sequence[Rollout], budget: int, device: str) -> TokenBatch:
    return TokenBatch.of([[response] for response in responses], [1.0] * len(responses), budget, device)
