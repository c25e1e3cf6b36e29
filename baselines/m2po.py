from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class M2po(Control):
    """Drops the tokens that are farthest from the policy that sampled them, until the rest is near it on average.

        m_t = (log p_old,t - log p_sampled,t)^2

    As many tokens are kept as possible with a mean m below the threshold, those with the smallest m in the rollout
    batch on all ranks, and at least one. p_sampled is the policy that sampled the token, so the control is for rollouts
    of older policies: `rollout.lag`. Without a lag m is rounding, and no token is dropped.

    Defaults: AReaL, whose example for GSM8K sets the threshold.

    Differs: the objective of the paper has no clip: `grpo(clip_low=1, clip_high=1e9, dual_clip=null)+m2po`. Its ratio
    is to p_sampled; here it is to p_old, and the importance correction accounts for the rest. AReaL selects in each
    micro-batch.
    """

    source = "arXiv:2510.01161"
    reads_sampler = True

    threshold: float = number(0.04, above=0)

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        squared_T = (old.logp.double() - batch.behaviour_logp_T.double()) ** 2
        from_smallest_T = batch.global_sorted(squared_T).flip(0)
        counts_T = from_smallest_T.new_ones(from_smallest_T.shape).cumsum(0)
        means_T = from_smallest_T.cumsum(0) / counts_T  # of the n smallest: it never falls with n
        kept = max(int((means_T < self.threshold).sum()), 1)
        return batch.global_order(squared_T) >= len(means_T) - kept
