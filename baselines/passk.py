from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

from baselines.grpo import Grouped
from harness.base.schema import number
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class PassK(ClippedObjective, Grouped):
    """Clipped policy gradient of Pass@k: k responses earn the reward of the best among them.

        rho   = 1 - C(n-c, k) / C(n, k)
        sigma = sqrt(rho (1 - rho))
        A     = (1 - rho) / (sigma + 1e-6)                                      for a right response
        A     = (1 - rho - C(n-c-1, k-1) / C(n-1, k-1)) / (sigma + 1e-6)        for a wrong response

    c of the n responses to a prompt are right; the advantages are means over all choices of k responses. J is GRPO's.
    The objective uses only which responses are right, so it refuses controls that shape rewards. If fewer than k
    responses are wrong, every choice contains a right one and all advantages are 0; so the objective refuses groups of
    k or fewer, from which it could not learn.

    Defaults: RUCAIBox/Passk_Training; k is from a released copy (UCPO's); clips as in `grpo`.

    Differs: no difference is known.
    """

    source = "arXiv:2508.10751"
    ignores_rewards = True

    k: int = number(4, least=1)

    @property
    def min_group(self) -> int:
        return self.k + 1

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        right_PG = batch.grouped(batch.right_B)
        n = right_PG.shape[1]
        assert n >= self.k
        pairs = old.logp.new_tensor([self.of_group(n, c) for c in range(n + 1)])  # by the number of right responses
        if_wrong_P1, if_right_P1 = pairs[right_PG.sum(1)].split(1, 1)
        return if_right_P1.where(right_PG, if_wrong_P1).flatten()[batch.sequence_T]

    def of_group(self, n: int, c: int) -> tuple[float, float]:
        """Return the advantages of a wrong and of a right response, where c of n are right."""
        all_wrong = comb(n - c, self.k) / comb(n, self.k)
        deviation = (all_wrong * (1 - all_wrong)) ** 0.5 + 1e-6
        others_wrong = comb(n - c - 1, self.k - 1) / comb(n - 1, self.k - 1) if c < n else 0.0
        return (all_wrong - others_wrong) / deviation, all_wrong / deviation
