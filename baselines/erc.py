from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Erc(Control):
    """Drops a token if its entropy has moved too far since before the update.

        rho_t = (H_t + 1e-8) / (H_old,t + 1e-8)
        w_t   = 1[1 - beta_low < rho_t < 1 + beta_high]

    The weights are evaluated in each update. At one update per rollout batch, nothing is dropped.

    Defaults: the run scripts. The configuration's own default is 0.2.

    Differs: no difference is known. The authors use it on DAPO or GPPO.
    """

    source = "arXiv:2512.05591"
    needs = frozenset({"entropy_now"})

    beta_low: float = number(0.05, least=0)
    beta_high: float = number(0.05, least=0)

    def gate(self, view: View) -> Tensor:
        assert view.current.entropy is not None
        assert view.old.entropy is not None
        rho_T = (view.current.entropy + 1e-8) / (view.old.entropy + 1e-8)
        return (rho_T > 1 - self.beta_low) & (rho_T < 1 + self.beta_high)
