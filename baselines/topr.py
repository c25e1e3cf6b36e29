from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.w_reinforce import Verdicts
from harness.base.schema import choice, number
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Topr(Verdicts):
    """REINFORCE that weighs a wrong response down as it becomes less likely, and a right one never.

        J_t = right log p_t                           of a right response
        J_t = -wrong sg[min(r, 1)] log p_t            of a wrong response

    r is the ratio of the token (level=token) or of the whole response, the product over its tokens (level=sequence).

    Defaults: ROLL, whose weights of right and wrong responses are 1, and whose ratio is of tokens.

    Differs: the ratio of the paper is that of the whole response: `level=sequence`. ROLL multiplies by an advantage,
    the paper by rewards of 1 and -1, as here.
    """

    source = "arXiv:2503.14286"
    silent_without_signal = True

    right: float = number(1.0, least=0)
    level: str = choice("token", ("token", "sequence"))

    def surrogate(self, view: View) -> Tensor:
        right_T = view.batch.right_B[view.batch.sequence_T]
        weight_T = self.log_ratio(view).clamp(max=0).exp().masked_fill(right_T, 1)
        return weight_T * view.advantages_T * view.current.logp

    def log_ratio(self, view: View) -> Tensor:
        """Return the log ratio by which a token is weighed, without gradient."""
        log_ratio_T = view.current.logp.detach() - view.old.logp
        if self.level == "token":
            return log_ratio_T
        return view.batch.per_sequence(log_ratio_T)[view.batch.sequence_T]

    def clips(self, view: View) -> tuple[Tensor, Tensor]:
        right_T = view.batch.right_B[view.batch.sequence_T]
        above_T = self.log_ratio(view) > 0
        none_T = right_T.new_zeros(right_T.shape)  # below a bound: the clamp holds ratios from above alone
        return none_T, above_T & ~right_T
