from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.schema import choice, number
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sapo(GroupObjective):
    """GRPO with a smooth gate in place of the clip, which closes gradually as the ratio leaves 1.

        s   = sigmoid(tau (r_t - 1))
        J_t = (4 / tau) s A

    tau is tau_positive where A > 0, else tau_negative. The gradient by log p is 4 s (1 - s) r A, which is A at r = 1.
    No token is clipped.

    Defaults: verl and TRL.

    Differs: no difference is known; verl and TRL clamp log r to within 20.
    """

    source = "arXiv:2511.20347"
    silent_without_signal = True

    normalise: str = choice("sequence", ("token", "sequence", "constant"))
    tau_positive: float = number(1.0, above=0)
    tau_negative: float = number(1.05, above=0)

    def surrogate(self, view: View) -> Tensor:
        advantages_T = view.advantages_T
        tau_T = advantages_T.new_full(advantages_T.shape, self.tau_negative)
        tau_T = tau_T.masked_fill(advantages_T > 0, self.tau_positive)
        return 4 / tau_T * (tau_T * (view.ratio_T - 1)).sigmoid() * advantages_T
