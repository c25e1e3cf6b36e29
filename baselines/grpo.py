from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.methods.verbs import ClippedObjective, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Grouped(Objective):
    """Base of objectives that compare the rewards of all responses to one prompt.

    Each token gets the advantage of its response.
    """

    @property
    def min_group(self) -> int:
        return 2

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        rewards_PG = batch.grouped(batch.rewards_B).double()
        advantages_B = self.compared(rewards_PG, batch).flatten().to(batch.rewards_B.dtype)
        return advantages_B[batch.sequence_T]

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        """Return the advantages of responses; each row of the rewards, in double, has the responses to one prompt."""
        raise NotImplementedError


@dataclass(frozen=True)
class GroupObjective(Grouped):
    """Base of objectives with GRPO's advantage.

        A_i = (R_i - mean_j R_j) / (std_j R_j + 1e-6)

    All tokens of response i share A_i. The deviation is the sample deviation (n - 1) over the responses to the prompt;
    `divide_by_std=false` omits the division.
    """

    divide_by_std: bool = True
    """Divide the advantage by the deviation of the rewards of the group."""

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        advantages_PG = centered(rewards_PG)
        if self.divide_by_std:
            advantages_PG = advantages_PG / (rewards_PG.std(1, keepdim=True) + 1e-6)
        return advantages_PG


@dataclass(frozen=True)
class Grpo(ClippedObjective, GroupObjective):
    """Clipped policy gradient whose baseline is the mean reward of the responses to the same prompt.

        A_i = (R_i - mean_j R_j) / (std_j R_j + 1e-6)
        J_t = min(r_t A, clip(r_t, 1 - clip_low, 1 + clip_high) A), and at least dual_clip A where A < 0

    All tokens of response i share A_i. The deviation is the sample deviation (n - 1) over the responses to the prompt.

    Defaults: clips of 0.2, the mean over tokens, no KL term and a dual clip of 3, as in verl and in the code of
    arXiv:2602.03392. The dual clip is from arXiv:1912.09729.

    Differs: the paper averages each response first (`normalise=sequence`) and adds a KL term (`kl_coef=0.04,
    kl_estimator=k3`); nearly all later work does neither.
    """

    source = "arXiv:2402.03300"


def centered(rewards_PG: Tensor) -> Tensor:
    """Return the rewards less the mean of their group, exactly 0 in a group of equal rewards."""
    # The minimum is subtracted first, since the mean of equal numbers is often not that number: a rounding error of
    # 1e-9, divided by a deviation of the same size, would become an advantage.
    above_PG = rewards_PG - rewards_PG.amin(1, keepdim=True)
    return above_PG - above_PG.mean(1, keepdim=True)
