from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import Grouped, centered
from harness.base.schema import choice, number
from harness.methods.verbs import ClippedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class Wapo(ClippedObjective, Grouped):
    """Learns only from the responses that are better than the mean of their group.

        A_i  = max(R_i - mean_j R_j, 0)
        J_t  = min(r_t, 1 + clip_high) A
        loss = sum over tokens / (responses x budget)

    Defaults: layer6ai-labs/wapo.

    Differs: the authors' ratio is to the engine's log p. Their mean covers only the groups with an advantage above 0,
    and their budget includes the prompt.
    """

    source = "arXiv:2606.16154"

    normalise: str = choice("constant", ("token", "sequence", "constant"))
    clip_high: float = number(9.0, least=0)

    def compared(self, rewards_PG: Tensor, batch: TokenBatch) -> Tensor:
        return centered(rewards_PG).clamp(min=0)
