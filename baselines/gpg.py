from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped, centered
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class Gpg(Grouped):
    """REINFORCE with the group's mean as baseline, scaled up for the groups that give no signal.

        A_i = alpha (R_i - mean_j R_j), alpha = prompts / prompts whose responses have different rewards
        J_t = A log p_t

    alpha counts the rollout batch on all ranks.

    Defaults: the paper; no division by the deviation.

    Differs: no difference is known.
    """

    source = "arXiv:2504.02546"
    silent_without_signal = True

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        signal_P = (rewards_PG != rewards_PG[:, :1]).any(1)
        prompts = batch.global_count(signal_P == signal_P)  # true for each prompt, so that all are counted
        alpha = prompts / max(batch.global_count(signal_P), 1.0)
        return alpha * centered(rewards_PG)

    def surrogate(self, view: View) -> Tensor:
        return view.advantages_T * view.current.logp
