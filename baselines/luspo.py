from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.gspo import Gspo
from harness.base.schema import number
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Luspo(Gspo):
    """GSPO with the loss of each response multiplied by its length.

        J_t = length_i min(s_it A, clip(s_it, 1 - clip_low, 1 + clip_high) A)

    s_it is GSPO's, and so is the mean over responses of each one's mean over tokens: long responses no longer weigh
    less per token than short ones.

    Defaults: TRL, with the clips of the paper's section 5.1.

    Differs: no difference is known.
    """

    source = "arXiv:2602.05261"
    silent_without_signal = True

    clip_low: float = number(2e-3, least=0)
    clip_high: float = number(2.5e-3, least=0)

    def surrogate(self, view: View) -> Tensor:
        return super().surrogate(view) * view.batch.lengths_B[view.batch.sequence_T]
