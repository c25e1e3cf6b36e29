from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

from baselines.clip_b import ClipB, harm
from harness.base.schema import number
from harness.base.shares import share_of

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class ClipV(ClipB):
    """Drops the tokens whose entropy discriminator S* is far from what the policy itself expects of it.

    As Clip_B with D = S* - N, N = E_{i~p}[S_i] over the vocabulary at each token, and sigma the population deviation
    of D around its batch mean, while the threshold is on D itself.
    mode reference: tokens with A > 0 are always kept, others where D >= -mu sigma; but of the tokens with A < 0 at most
    max(floor(max_frac tokens), 1) are dropped, the most negative D first (fewer, where several tie at the edge).
    """

    needs = frozenset({"sum_p2"})

    mu: float = number(8.5, least=0)
    max_frac: float = number(1e-4, least=0, most=1)

    def deviation(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        return old.discriminator - old.expected_discriminator

    def reference(self, deviation_T: Tensor, sigma: Tensor, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        harm_T = harm(deviation_T, advantages_T)
        most = max(floor(share_of(self.max_frac, batch.global_tokens())), 1)
        spared_T = (advantages_T < 0) & (harm_T <= batch.global_kth_largest(harm_T, most + 1))
        return (advantages_T > 0) | (deviation_T >= -self.mu * sigma) | spared_T
