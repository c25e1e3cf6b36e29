from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.schema import number
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Vespo(GroupObjective):
    """REINFORCE weighted by a smooth function of the whole response's ratio, which is largest near 1.

        w_i = prod_t p_t / p_old,t
        J_t = sg[w_i^k exp(lambda (1 - w_i))] A log p_t

    k and lambda depend on the sign of A; A = 0 counts as positive. The log ratio of each token is clamped to -20 to 20,
    that of the response to log 1e-8 to 20. The advantage is GRPO's. No token is clipped.

    Defaults: the code of FloyedShen/VESPO (the numbers in its docstring differ) and TRL.

    Differs: if the mismatch of trainer and rollout engine is corrected, the authors' code multiplies w by their ratio;
    here the correction is a separate factor.
    """

    source = "arXiv:2602.10693"
    silent_without_signal = True

    k_positive: float = number(2.0, least=0)
    lambda_positive: float = number(3.0, least=0)
    k_negative: float = number(3.0, least=0)
    lambda_negative: float = number(2.0, least=0)

    def surrogate(self, view: View) -> Tensor:
        batch, advantages_T = view.batch, view.advantages_T
        log_ratio_T = (view.current.logp.detach() - view.old.logp).clamp(-20, 20)
        log_w_T = batch.per_sequence(log_ratio_T).clamp(log(1e-8), 20)[batch.sequence_T]
        away_T = 1 - log_w_T.exp()
        positive_T = self.k_positive * log_w_T + self.lambda_positive * away_T
        negative_T = self.k_negative * log_w_T + self.lambda_negative * away_T
        return positive_T.where(advantages_T >= 0, negative_T).exp() * advantages_T * view.current.logp
