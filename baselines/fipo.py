from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from baselines.grpo import Grpo
from baselines.ppo import discounted
from harness.base.schema import number
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Fipo(Grpo):
    """GRPO that weighs a token by how far the policy has moved toward the tokens after it.

        F_t = sum_{k>=t} gamma^(k-t) log r_k over the response, without tokens of r_k > dual_clip
        f_t = sg[clip(exp F_t, lowest, highest)], within 0.8 to 1 where A < 0 and r_t > safety
        J_t = f_t times GRPO's

    gamma = 2^(-1 / half_life).

    Defaults: the authors' script for 32 B, on DAPO's clips. ms-swift has `safety=4`, and in its example
    `lowest=0.8, safety=3`.

    Differs: the authors' code also drops a response if the dual clip stops more than one of its tokens, which they
    report to be rare.
    """

    source = "arXiv:2603.19835"
    silent_without_signal = True

    clip_high: float = number(0.28, least=0)
    dual_clip: float | None = number(10.0, least=1)
    half_life: float = number(32.0, above=0)
    lowest: float = number(1.0, least=0, most=1)
    highest: float = number(1.2, least=1)
    safety: float | None = number(10.0, above=0)

    def surrogate(self, view: View) -> Tensor:
        return self.influence(view) * super().surrogate(view)

    def influence(self, view: View) -> Tensor:
        """Return the weight of each token, without gradient."""
        batch = view.batch
        log_ratio_T = view.current.logp.detach() - view.old.logp
        moved_T = log_ratio_T
        if self.dual_clip is not None:
            moved_T = moved_T.masked_fill(log_ratio_T > log(self.dual_clip), 0)
        after_T = batch.lengths_B[batch.sequence_T] - 1 - batch.within_T
        future_T = discounted(moved_T, 2 ** (-1 / self.half_life), after_T)
        weight_T = future_T.exp().clamp(self.lowest, self.highest)
        if self.safety is None:
            return weight_T
        risky_T = (view.advantages_T < 0) & (log_ratio_T > log(self.safety))
        return weight_T.clamp(0.8, 1).where(risky_T, weight_T)
