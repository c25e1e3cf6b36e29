from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

from baselines.clip_b import ClipB, harm
from harness.base.schema import number
from harness.methods.shares import share_of

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class ClipV(ClipB):
    """Drops tokens whose entropy discriminator S* is far from the policy's own expectation of it.

        D     = S* - N, with N = E_{i~p}[S_i] over the vocabulary at each token
        sigma = population deviation of D around its mean over the rollout batch
        mode=reference: dropped where A <= 0 and D < -mu sigma, but among tokens with A < 0 only
                        the max(floor(max_frac n), 1) with the lowest D, where n counts all tokens
        mode=paper:     dropped where D < -mu sigma or D > mu_high sigma, without a cap

    The threshold is on D itself and not on its distance to the mean. `mu_high`, `share` and `logp` are as in `clip_b`;
    with `share` the cap does not apply.

    Defaults: the released default arguments.

    Differs: the denominator, as in `clip_b`. If several tokens tie at the edge of the cap, none of them is dropped (in
    the authors' code any of them may be), so that the order of the batch does not matter. Dropping a token with A = 0
    changes no gradient, and the denominator only with `reference_denominator=true`.
    """

    needs = frozenset({"sum_p2"})

    mu: float = number(8.5, least=0)
    max_frac: float = number(1e-4, least=0, most=1)

    def deviation(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        return self.discriminator(old, batch) - old.expected_discriminator

    def reference(self, deviation_T: Tensor, sigma: Tensor, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        harm_T = harm(deviation_T, advantages_T)
        most = max(floor(share_of(self.max_frac, batch.global_tokens())), 1)
        spared_T = (advantages_T < 0) & (harm_T <= batch.global_kth_largest(harm_T, most + 1))
        return (advantages_T > 0) | (deviation_T >= -self.mu * sigma) | spared_T
