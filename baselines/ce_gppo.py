from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grpo
from harness.base.schema import number

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CeGppo(Grpo):
    """GRPO in which tokens beyond the clip keep a bounded gradient, weighted by side.

        J_t = beta1 (1 - clip_low)  r/sg[r] A   where r < 1 - clip_low  and A < 0
              beta2 (1 + clip_high) r/sg[r] A   where r > 1 + clip_high and A > 0
              r A                               otherwise
        and at least dual_clip A where A < 0

    The advantage is GRPO's. `beta1=1, beta2=1` is GPPO, arXiv:2508.07629.

    Defaults: the authors' scripts for 7 B (for 1.5 B: `beta1=0.5`), with a dual clip of 10.

    Differs: no difference is known in the loss. The authors' group filtering, learning-rate warm-up and weight decay
    are not part of the method here.
    """

    source = "arXiv:2509.20712"

    dual_clip: float | None = number(10.0, least=1)
    beta1: float = number(0.75, least=0)
    beta2: float = number(1.0, least=0)

    def beyond(self, ratio_T: Tensor, bound_T: Tensor) -> Tensor:
        weight_T = (self.beta2 * bound_T).where(ratio_T > 1, self.beta1 * bound_T)
        return weight_T * (ratio_T / ratio_T.detach())
