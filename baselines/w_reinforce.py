from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import ClippedObjective, Objective, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Verdicts(Objective):
    """Base of objectives with a fixed weight for right responses and one for wrong ones, and no baseline."""

    ignores_rewards = True

    right: float = number(0.1, least=0)
    wrong: float = number(1.0, least=0)

    def advantages(self, old: TokenStats, batch: TokenBatch) -> Tensor:
        right_T = batch.right_B[batch.sequence_T]
        return old.logp.new_full(right_T.shape, -self.wrong).masked_fill(right_T, self.right)


@dataclass(frozen=True)
class WReinforce(Verdicts):
    """REINFORCE in which right responses weigh less than wrong ones.

        J_t = A log p_t, with A = right for a right response and -wrong for a wrong one

    `nsr` learns from wrong responses alone, `psr` from right ones alone. Controls that shape rewards are refused.

    Defaults: the paper and TianHongZXY/RLVR-Decomposed.

    Differs: this is the form of the paper's text. No ratio corrects for the updates since the rollout, so use one or
    few updates per rollout batch; `w_reinforce_ppo`, the form that the authors run, has such a ratio.
    """

    source = "arXiv:2506.01347"
    silent_without_signal = True

    def surrogate(self, view: View) -> Tensor:
        return view.advantages_T * view.current.logp


@dataclass(frozen=True)
class WReinforcePpo(ClippedObjective, Verdicts):
    """W-REINFORCE with PPO's clipped ratio, as the authors run it.

        A = right for a right response, -wrong for a wrong one

    J is that of `grpo`. At one update per rollout batch the gradient is that of `w_reinforce`. Controls that shape
    rewards are refused.

    Defaults: the form that the authors' code runs, with right and wrong as in `w_reinforce` and clips as in `grpo`.

    Differs: no difference is known, except those of `nsr` and `psr`.
    """

    source = "arXiv:2506.01347"
