"""The first pass of a step's first update, computed before it, so that it gives the statistics before the update too.

Until the first update the policy is the one of the old log-probabilities, so one pass with gradient serves twice. It is
one micro-batch alone, since its activations stay in memory until its backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness import ranks
from harness.methods.batch import TokenBatch, TokenStats
from harness.methods.composition import Method
from harness.train.policy import Policy, order_of


@dataclass(frozen=True)
class FirstPass:
    part: TokenBatch
    stats: TokenStats  # with gradient

    def contains(self, batch: TokenBatch) -> bool:
        return bool(torch.isin(batch.places_B, self.part.places_B).all())

    def divide(self, batch: TokenBatch) -> tuple[TokenBatch, TokenBatch]:
        """Return the responses of a batch that are in this pass, and the others."""
        inside_B = torch.isin(batch.places_B, self.part.places_B)
        inside, outside = inside_B.nonzero().flatten(), (~inside_B).nonzero().flatten()
        return batch.take(inside.tolist()), batch.take(outside.tolist())

    def at(self, batch: TokenBatch) -> TokenStats:
        """Return the statistics of responses in this pass, with gradient."""
        order_T = self.part.index_T.argsort()  # a micro-batch may be sorted by length
        place_T = torch.searchsorted(self.part.index_T[order_T], batch.index_T)
        return self.stats.at(order_T[place_T])

    def completed(self, batch: TokenBatch, policy: Policy, needs: frozenset[str]) -> TokenStats:
        """Return the statistics of a whole rollout batch, without gradient, by a pass of the other responses."""
        _, others = self.divide(batch)
        if not len(others):
            return self.at(batch).detach()
        parts = [self.stats.detach(), policy.stats(others, needs)]
        return TokenStats.cat(parts).at(order_of([self.part, others]))


def first_pass(policy: Policy, method: Method, minibatch: TokenBatch, needs: frozenset[str]) -> FirstPass | None:
    """Return the pass of the first micro-batch that likely has a gradient; None if there is none.

    None on several ranks too: weights that are gathered for it would have to be kept until its backward pass.
    """
    likely = method.likely_contributing(minibatch)
    if ranks.several() or not len(likely):
        return None
    part = policy.micro_batches(likely)[0]
    return FirstPass(part, policy.current(part, needs, before=True))
