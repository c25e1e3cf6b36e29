from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped, centered
from harness.base.schema import number
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class AsymRe(Grouped):
    """REINFORCE without a ratio, whose baseline is a little below the group's mean reward.

        A_i = R_i - (mean_j R_j + shift)
        J_t = A log p_t

    With a negative shift, right responses push more than wrong ones, which the paper shows to be safe for samples of an
    older policy: `rollout.lag`. A group of equal rewards has the advantage -shift.

    Defaults: the shift of the paper's runs with language models, and of Trinity-RFT.

    Differs: no difference is known.
    """

    source = "arXiv:2506.20520"
    silent_without_signal = True

    shift: float = number(-0.1, least=-10, most=10)

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        return centered(rewards_PG) - self.shift

    def surrogate(self, view: View) -> Tensor:
        return view.advantages_T * view.current.logp
