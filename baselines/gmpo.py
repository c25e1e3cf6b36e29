from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.schema import choice, number
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Gmpo(GroupObjective):
    """GRPO on the geometric mean of a response's ratios, each of them clipped separately.

        d_t = log p_t - log p_old,t, at most clip_high where A > 0, at least -clip_low where A < 0
        J_i = A_i exp(mean_t d_t), averaged over responses

    The advantage is GRPO's. A response is one product of all its tokens, so controls that weigh single tokens or change
    their advantages one by one (`low_prob`, `entropy_advantage`, `repo_r`) are refused: only their mean over a response
    would remain. Every `normalise` except `sequence` is refused as well.

    Defaults: callsys/GMPO and verl; the clips are bounds on the logarithm of the ratio.

    Differs: no difference is known in the loss. The importance correction weighs a response by the mean of its tokens'
    weights (verl: by the geometric mean).
    """

    source = "arXiv:2507.20673"
    by_response = True
    silent_without_signal = True

    normalise: str = choice("sequence", ("sequence",))
    clip_low: float = number(0.4, least=0)
    clip_high: float = number(0.4, least=0)

    def surrogate(self, view: View) -> Tensor:
        batch = view.batch
        low_T, high_T = self.clips(view)
        log_ratio_T = view.current.logp - view.old.logp
        log_ratio_T = log_ratio_T.masked_fill(low_T, -self.clip_low).masked_fill(high_T, self.clip_high)
        mean_B = batch.per_sequence(log_ratio_T) / batch.lengths_B.clamp(min=1)
        return view.advantages_T * mean_B.exp()[batch.sequence_T]

    def clips(self, view: View) -> tuple[Tensor, Tensor]:
        log_ratio_T = view.current.logp - view.old.logp
        low_T = (view.advantages_T < 0) & (log_ratio_T < -self.clip_low)
        return low_T, (view.advantages_T > 0) & (log_ratio_T > self.clip_high)
