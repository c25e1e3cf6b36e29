from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.method import Control, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Erc(Control):
    """Drops a token where its entropy has moved too far since before the update.

    w_t = 1[1 - beta_low < rho_t < 1 + beta_high] with rho_t = (H_t + 1e-8) / (H_old,t + 1e-8), looked at afresh in
    each update; the denominator stays. At one update per rollout batch nothing is dropped.
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
