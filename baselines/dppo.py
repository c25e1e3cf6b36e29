from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.schema import choice, number
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor

DELTA = {"tv": 0.15, "kl": 0.05}


@dataclass(frozen=True)
class Dppo(GroupObjective):
    """Policy gradient that drops tokens whose probability, not ratio, moved too far along their advantage.

        A_i = R_i - mean_j R_j over the responses to one prompt
        J_t = 0                           where p has moved along A by D > delta
              sg[min(r_t, cap)] A log p_t otherwise
        measure=tv: D = |p - p_old|
        measure=kl: D = p_old log(p_old / p) + (1 - p_old) log((1 - p_old + 1e-8) / (1 - p + 1e-8))

    p has moved along A where A > 0 and p > p_old, or A < 0 and p < p_old. Both measures compare the sampled token with
    all others taken together. `delta=null` means 0.15 for tv and 0.05 for kl.

    Defaults: delta, divide_by_std and normalise are from verl's `run_qwen3_30b_a3b_megatron.sh`. The cap of 3 is
    `clip_ratio_c` in the configurations of verl and of sail-sg/Stable-RL, the authors' repository; the script sets
    10,000 (`cap=10000`).

    Differs: p_old is the trainer's, before the update. The authors measure both r and D against the policy of the
    rollout engine (`dppo_binary_tv`, `dppo_binary_kl` in Stable-RL), and their first script in verl recommends that
    (`bypass_mode=True`). D against the trainer's policy is one of their variants (`..._recompute`), still with r
    against the engine's. verl's loss takes the policy that its configuration selects.
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
        """Return the masks of tokens that moved too far down and too far up."""
        p_T, old_T = view.current.logp.detach().exp(), view.old.logp.exp()
        moved_T = p_T - old_T
        if self.measure == "kl":
            others_T = (1 - old_T) * ((1 - old_T + 1e-8) / (1 - p_T + 1e-8)).log()
            far_T = old_T * (view.old.logp - view.current.logp.detach()) + others_T
        else:
            far_T = moved_T.abs()
        delta = DELTA[self.measure] if self.delta is None else self.delta
        beyond_T = far_T > delta
        down_T = beyond_T & (view.advantages_T < 0) & (moved_T < 0)
        up_T = beyond_T & (view.advantages_T > 0) & (moved_T > 0)
        return down_T, up_T

    def clips(self, view: View) -> tuple[Tensor, Tensor]:
        low_T, high_T = self.dropped(view)
        return low_T, high_T | (view.ratio_T > self.cap)
