from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from harness.base.schema import choice, number
from harness.methods.verbs import LARGEST_LOG_RATIO, Control

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DphRl(Control):
    """DPH-RL: a divergence on right responses of the model before training to problems that it solves nearly always.

        r       = p / p_ref
        forward:  L_t = coefficient min(r - 1 - log r, 10)                  an estimate of KL(p_ref, p)
        js:       L_t = coefficient (r log r - (r + 1) log((r + 1) / 2))    the generator of the JS divergence

    It needs `train.filter`, and uses the problems that this leaves out as too easy. One response to each of them is
    sampled before training, and the right ones are kept. Some of them join each optimizer step, in turn: `base_share`
    times the number of the policy's responses. Their mean loss is weighted by `base_share`.

    Defaults: the authors' script of forward. Their README has 0.05 to 0.2 for js.

    Differs: their problems are those with 4 right responses of 4, and all others are trained on.
    """

    source = "arXiv:2509.07430"

    divergence: str = choice("forward", ("forward", "js"))
    coefficient: float = number(0.01, least=0)
    base_share: float = number(0.125, above=0, most=1)

    def base_term(self, logp_T: Tensor, base_logp_T: Tensor) -> Tensor:
        log_ratio_T = (logp_T - base_logp_T).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
        ratio_T = log_ratio_T.exp()
        if self.divergence == "forward":
            return self.coefficient * (ratio_T - 1 - log_ratio_T).clamp(max=10)
        log_mean_T = log_ratio_T.logaddexp(log_ratio_T.new_zeros(())) - log(2)
        return self.coefficient * (ratio_T * log_ratio_T - (ratio_T + 1) * log_mean_T)
