from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.method import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class EntropyAdvantage(Control):
    """Adds to the advantage of a token its entropy, up to a part of the advantage's size.

    A'_t = A_t + min(scale H_t, |A_t| / bound), with H of the policy before the update and without gradient. So a sign
    never turns for bound >= 1, and a token without advantage gets none. Defaults are known from summaries only; bound
    is 1 in one release.
    """

    source = "arXiv:2506.14758"

    scale: float = number(0.4, least=0)
    bound: float = number(2.0, above=0)

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        assert old.entropy is not None
        return advantages_T + (self.scale * old.entropy).minimum(advantages_T.abs() / self.bound)
