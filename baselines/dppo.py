from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.schema import choice, number
from harness.method import View

if TYPE_CHECKING:
    from torch import Tensor

DELTA = {"tv": 0.15, "kl": 0.05}


@dataclass(frozen=True)
class Dppo(GroupObjective):
    """Drops the tokens whose probability, and not whose ratio, has moved too far along their advantage.

    A_i = R_i - mean_j R_j over the responses to one prompt, without division by the deviation.
    J_t = sg[min(r_t, cap)] A log p_t, and 0 where A > 0, p > p_old and D > delta, or A < 0, p < p_old and D > delta.
    measure tv: D = |p - p_old|. measure kl: D = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)),
    1e-8 added to numerator and denominator of the last quotient. Both look at the sampled token against all others.
    delta null: 0.15 for tv, 0.05 for kl.

    p_old is the trainer's, before the update. The authors measure ratio and divergence against the rollout engine's
    policy, and recommend that. cap is 3 in the configuration of verl and of the authors' repository; the script in
    verl raises it to 10,000.
    """

    source = "arXiv:2602.04879"
    silent_without_signal = True

    divide_by_std: bool = False
    normalise: str = choice("constant", ("token", "sequence", "constant"))
    measure: str = choice("tv", ("tv", "kl"))
    delta: float | None = number(None, least=0)
    cap: float = number(3.0, least=1)

    def surrogate(self, view: View) -> Tensor:
        weight_T = view.ratio_T.detach().clamp(max=self.cap)
        low_T, high_T = self.dropped(view)
        return (weight_T * view.advantages_T).masked_fill(low_T | high_T, 0) * view.current.logp

    def dropped(self, view: View) -> tuple[Tensor, Tensor]:
        p_T, old_T = view.current.logp.detach().exp(), view.old.logp.exp()
        moved_T = p_T - old_T
        if self.measure == "kl":
            others_T = (1 - old_T) * ((1 - old_T + 1e-8) / (1 - p_T + 1e-8)).log()
            far_T = old_T * (view.old.logp - view.current.logp.detach()) + others_T
        else:
            far_T = moved_T.abs()
        beyond_T = far_T > (DELTA[self.measure] if self.delta is None else self.delta)
        return beyond_T & (view.advantages_T < 0) & (moved_T < 0), beyond_T & (view.advantages_T > 0) & (moved_T > 0)

    def clips(self, view: View) -> tuple[Tensor, Tensor]:
        low_T, high_T = self.dropped(view)
        return low_T, high_T | (view.ratio_T > self.cap)
