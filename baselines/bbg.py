from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Bbg(Control):
    """Weighs a problem by the expected slope of Pass@k, and drops it when it is nearly solved.

        u(m) = E[k (1 - p)^(k-1)] = k prod_{i=0}^m (n + 1 - i) / (n + k - i)
        w    = u(m) / u(1), but 0 where u(m) < tau (n + 1)

    m of the n responses to the prompt are right, and p ~ Beta(m + 1, n - m + 1).

    Defaults: an independent implementation; the authors' code was not found.

    Differs: the paper has a REINFORCE loss for problems without a right response.
    """

    source = "arXiv:2606.15455"
    by_response = True

    k: int = number(16, least=2)
    tau: float = number(0.01, least=0)

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        right_PG = batch.grouped(batch.right_B)
        by_count = advantages_T.new_tensor(self.by_count(right_PG.shape[1]))
        weights_PG = by_count[right_PG.sum(1, keepdim=True)].expand_as(right_PG)
        return weights_PG.flatten()[batch.sequence_T]

    def by_count(self, n: int) -> list[float]:
        """Return the weight of a group of n responses by the number of right ones, 0 to n."""
        slopes = [self.k * prod((n + 1 - i) / (n + self.k - i) for i in range(m + 1)) for m in range(n + 1)]
        return [slope / slopes[1] if slope >= self.tau * (n + 1) else 0.0 for slope in slopes]
