from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped, centered
from harness.base.schema import choice, number
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class Kimi(Grouped):
    """REINFORCE with a quadratic penalty on the log ratio in place of a clip: policy mirror descent.

        A_i = R_i - mean_j R_j
        J_t = A log p_t - tau / 2 (log r_t)^2         level=token
        J_t = (A - tau sg[sum_k log r_k]) log p_t     level=sequence

    At level=sequence, the gradient is that of A log p - tau / 2 (log r)^2 of the whole response. The penalty acts
    without advantage too, so no response is skipped.

    Defaults: ROLL's `kimi15`.

    Differs: the paper's form is `level=sequence`.
    """

    source = "arXiv:2501.12599"

    tau: float = number(0.1, least=0)
    level: str = choice("token", ("token", "sequence"))

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        return centered(rewards_PG)

    def surrogate(self, view: View) -> Tensor:
        batch, logp_T = view.batch, view.current.logp
        log_ratio_T = logp_T - view.old.logp
        if self.level == "token":
            return view.advantages_T * logp_T - 0.5 * self.tau * log_ratio_T**2
        moved_B = batch.per_sequence(log_ratio_T.detach())
        return (view.advantages_T - self.tau * moved_B[batch.sequence_T]) * logp_T
