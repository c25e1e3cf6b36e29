from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.schema import choice, number
from harness.method import View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Gmpo(GroupObjective):
    """Maximises the geometric mean of a response's ratios, each of them clipped by itself.

    d_t = log p_t - log p_old,t, at most clip_high where A > 0 and at least -clip_low where A < 0;
    J_i = A_i exp(mean_t d_t), and the mean over responses.

    As a response is one product of all its tokens, controls that weigh single tokens or change their advantages one by
    one are refused, and so is every normalisation but that by response. The authors' default is clip_low = clip_high =
    0.4, in the logarithm.
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
