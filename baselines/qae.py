from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from baselines.grpo import Grouped
from harness.base.schema import choice, number
from harness.methods.shares import share_of
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class Qae(ClippedObjective, Grouped):
    """GRPO whose baseline is a quantile of the group's rewards instead of their mean.

        A_i = (R_i - b) / (std_j R_j + 1e-6), with b the quantile of the group's rewards

    The sample deviation (n - 1) is around the mean. J is GRPO's. With K the option `quantile`:

    - `mode=reference`: b is interpolated between neighboring rewards in sorted order. At the border between the two
      cases below, this gives values from 0 to 1.
    - `mode=paper`: b is the lowest reward that a share of at least K of the group does not exceed. With rewards of 0
      and 1, b is 0 if at most 1 - K of the group are right, else 1.

    Defaults: the quantile and the interpolation are from the authors' README, which shows the changed lines; clips as
    in `grpo`.

    Differs: the authors' scripts are DAPO's: `clip_high=0.28, dual_clip=10`. The rest of their code was not read.
    """

    source = "arXiv:2509.22611"

    mode: str = choice("reference", ("reference", "paper"))
    quantile: float = number(0.4, above=0, below=1)

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        if self.mode == "reference":
            baseline_P1 = rewards_PG.quantile(self.quantile, 1, keepdim=True)
        else:
            place = ceil(share_of(self.quantile, rewards_PG.shape[1])) - 1
            baseline_P1 = rewards_PG.sort(1).values[:, place, None]
        return (rewards_PG - baseline_P1) / (rewards_PG.std(1, keepdim=True) + 1e-6)
