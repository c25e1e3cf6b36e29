from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Entropic(Control):
    """Steers the entropy to a target by weighing positive against negative tokens, with a PI controller.

        e_k   = H_k - target
        alpha = k_p e_k + k_i sum_{j <= k} e_j, within -1 to 1
        w     = 1 + alpha where A > 0, 1 - alpha where A < 0

    H_k is the mean entropy of rollout batch k before its update.

    Defaults: k_p, k_i and the sign are from a re-implementation; the authors' gains are not known. The target is ours.

    Differs: known from a re-implementation only. The bounds of alpha are ours: without them a weight could be negative.
    The sum of e is not bounded.

    Logs: `state/entropic/integral` is the sum of e after the step.
    """

    source = "arXiv:2511.15248"

    target: float = number(0.3, least=0)
    k_p: float = number(1.0, least=0)
    k_i: float = number(0.01, least=0)

    @cached_property
    def remembered(self) -> dict[str, float]:
        return {"integral": 0.0}

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        assert old.entropy is not None
        error = batch.global_mean(old.entropy) - self.target
        alpha = (self.k_p * error + self.k_i * (self.remembered["integral"] + error)).clamp(-1, 1)
        return 1 + alpha * advantages_T.sign()

    def observe(self, metrics: Mapping[str, float]) -> None:
        self.remembered["integral"] += metrics["entropy/mean"] - self.target
