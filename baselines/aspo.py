from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from baselines.archer import ByEntropy
from harness.base.schema import number
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Aspo(ByEntropy):
    """GRPO with the ratio of positive tokens inverted, so that tokens that became less likely gain the most.

        w_t = min(1 / r_t, inverse_cap)   where A > 0
              min(r_t, dual_clip)         where A < 0
        J_t = sg[w_t] r_t / sg[r_t] A

    A token beyond the clip of its sign has no gradient. As in `archer`, the clip is wider for tokens of high entropy,
    and the KL term applies to all other tokens. Unlike in GRPO, a token beyond dual_clip keeps its gradient.

    Defaults: wizard-III/Archer2.0, code and scripts; its narrow clips are the shared ones here.

    Differs: the denominator of the KL term, as in `archer`. The authors' code calls its mask of low-entropy tokens
    `high_entropy_mask`; this class follows the computation, not the name. Only summaries of the paper were read.
    """

    source = "arXiv:2510.06062"
    silent_without_signal = True

    high_entropy_clip_low: float = number(0.4, least=0)
    high_entropy_clip_high: float = number(0.4, least=0)
    inverse_cap: float | None = number(3.0, least=1)

    def surrogate(self, view: View) -> Tensor:
        ratio_T = view.ratio_T.detach()
        low_T, high_T = self.bounds(view)
        held_T = ratio_T.clamp(low_T, high_T)
        inverse_T = (1 / held_T).clamp(max=self.inverse_cap or inf)
        weight_T = inverse_T.where(view.advantages_T > 0, held_T.clamp(max=self.dual_clip or inf))
        moving_T = (view.current.logp - view.current.logp.detach()).exp()  # r / sg[r]
        outside_T = (ratio_T < low_T) | (ratio_T > high_T)
        return weight_T * moving_T.detach().where(outside_T, moving_T) * view.advantages_T

    def clips(self, view: View) -> tuple[Tensor, Tensor]:
        low_T, high_T = super().clips(view)
        capped_T = 1 / view.ratio_T > (self.inverse_cap or inf)
        return low_T | (view.advantages_T > 0) & capped_T, high_T
