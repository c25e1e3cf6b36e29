from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.schema import choice, number
from harness.methods.verbs import ClippedObjective, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Gspo(ClippedObjective, GroupObjective):
    """GRPO whose ratio is that of the whole response, to the power of one over its length.

        s_i  = exp(mean_t (log p_t - log p_old,t))
        s_it = sg[s_i] p_t / sg[p_t], with log s_it at most 10
        J_t  = min(s_it A, clip(s_it, 1 - clip_low, 1 + clip_high) A)

    The loss is the mean over responses of each response's mean over tokens, and no other `normalise` is allowed. Only
    then is the gradient that of the response's own objective min(s_i A, clip(s_i) A); a mean over all tokens would
    weigh responses by their lengths. The share of clipped tokens is 10 to 40 %, compared with GRPO's 0.03 %.

    Defaults: verl.

    Differs: no difference is known.
    """

    source = "arXiv:2507.18071"

    normalise: str = choice("sequence", ("sequence",))
    clip_low: float = number(3e-4, least=0)
    clip_high: float = number(4e-4, least=0)
    dual_clip: float | None = number(None, least=1)

    def ratio(self, view: View) -> Tensor:
        batch, logp_T = view.batch, view.current.logp
        mean_B = batch.per_sequence(logp_T.detach() - view.old.logp) / batch.lengths_B.clamp(min=1)
        return (mean_B[batch.sequence_T] + logp_T - logp_T.detach()).clamp(max=10).exp()
