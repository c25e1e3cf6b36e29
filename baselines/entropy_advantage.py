from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class EntropyAdvantage(Control):
    """Adds a token's entropy to its advantage, up to a fraction of the advantage's size.

        A'_t = A_t + min(scale H_t, |A_t| / bound)

    H is the entropy before the update, without gradient. If `bound` is at least 1, no advantage changes its sign, and
    an advantage of 0 stays 0.

    Defaults: known from summaries only; one release has `bound=1`.

    Differs: not compared with the authors' code.
    """

    source = "arXiv:2506.14758"

    scale: float = number(0.4, least=0)
    bound: float = number(2.0, above=0)

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        assert old.entropy is not None
        return advantages_T + (self.scale * old.entropy).minimum(advantages_T.abs() / self.bound)
