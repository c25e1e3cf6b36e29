from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.schema import choice, number
from harness.methods.verbs import ClippedObjective, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Dcpo(ClippedObjective, GroupObjective):
    """GRPO whose clip is wider the less probable a token was.

        r >= (1 + sqrt(max(1 - 4 clip_low / p_old, 0))) / 2        where A < 0
        r <= min((1 + sqrt(1 + 4 clip_high / p_old)) / 2, cap)     where A > 0

    The bounds follow from |(r - 1) p| <= clip. Everything else is GRPO.

    Defaults: clips of 0.16 and 0.2 are the paper's (the script of lime-RL/DCPO has 0.2 and 0.28); the dual clip and the
    cap of 10 are from its code.

    Differs: the authors' advantages are smoothed over all earlier rewards of the same prompt. That is not offered,
    because an objective has no memory of prompts. Their loss averages over the tokens of each response and then sums;
    `normalise=sequence` also divides by the number of responses.
    """

    source = "arXiv:2509.02333"

    normalise: str = choice("sequence", ("token", "sequence", "constant"))
    clip_low: float = number(0.16, least=0)
    clip_high: float = number(0.2, least=0)
    dual_clip: float | None = number(10.0, least=1)
    cap: float = number(10.0, least=1)

    def bounds(self, view: View) -> tuple[Tensor, Tensor]:
        low_T, high_T = super().bounds(view)  # 1 - clip_low and 1 + clip_high; infinite on sides without a bound
        q_T = view.old.logp.exp()
        lower_T = (1 + (1 - 4 * (1 - low_T) / q_T).clamp(min=0).sqrt()) / 2
        upper_T = ((1 + (1 + 4 * (high_T - 1) / q_T).sqrt()) / 2).clamp(max=self.cap)
        return low_T.where(low_T.isinf(), lower_T), high_T.where(high_T.isinf(), upper_T)
