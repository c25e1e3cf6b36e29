"""An entropy control outside the repository; `--plugin plugin_example` reads METHODS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from entrobench import Control, number

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Reweighting(Control):
    """Weakens the advantages of improbable tokens, whose gradients are the largest.

    A'_t = (alpha p_t + 1 - alpha) A_t, with p of the policy before the update.
    """

    source = "arXiv:2505.12929"

    alpha: float = number(0.2, least=0, most=1)

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        return (self.alpha * old.logp.exp() + 1 - self.alpha) * advantages_T


METHODS = {"example_reweighting": Reweighting}
