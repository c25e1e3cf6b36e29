from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class LowProb(Control):
    """Scales down the advantage of improbable tokens: advantage reweighting, AR.

        A'_t = (alpha p_old + 1 - alpha) A_t

    The method is meant to protect the many probable tokens from the large gradients of the few improbable ones. It
    makes the mean step smaller and lowers the entropy, so it serves as a contrast here.

    Defaults: the released script for AR alone (0.3 together with Lopti, which is not offered).

    Differs: no difference is known.
    """

    source = "arXiv:2505.12929"

    alpha: float = number(0.2, least=0, most=1)

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        return (self.alpha * old.logp.exp() + 1 - self.alpha) * advantages_T
