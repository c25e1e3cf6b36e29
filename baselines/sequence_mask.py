from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SequenceMask(Control):
    """Drops a negative response that has become much less likely since before the update.

        dropped where mean_t A < 0 and mean_t (log p_old - log p) > delta

    The condition is evaluated in each update. At one update per rollout batch, nothing is dropped. The weights belong
    to whole responses, so every objective accepts the control. The paper is that of DeepSeek-V3.2.

    Defaults: TRL's example.

    Differs: log p_old is the trainer's before the update; a comparison with the engine's is the importance
    `correction`.
    """

    source = "arXiv:2512.02556"
    by_response = True

    delta: float = number(0.5, least=0)

    def gate(self, view: View) -> Tensor:
        batch = view.batch
        fall_B = batch.per_sequence((view.old.logp - view.current.logp).detach()) / batch.lengths_B
        negative_B = batch.per_sequence(view.advantages_T) < 0
        return ~(negative_B & (fall_B > self.delta))[batch.sequence_T]
