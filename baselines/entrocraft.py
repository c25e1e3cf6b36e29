from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.schema import numbers
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Entrocraft(Control):
    """Keeps the entropy within a moving band by dropping one sign of advantage outside it.

        mean H > upper: tokens with A < 0 are dropped
        mean H < lower: tokens with A > 0 are dropped

    `lower` and `upper` move linearly from their first number to their second over the run, by the share of the run's
    steps that are done. The mean covers the rollout batch before the update; within the band nothing is dropped.

    Defaults: the released code.

    Differs: the authors' denominator is known from summaries only. Here all tokens count, unless
    `reference_denominator=true`.
    """

    source = "arXiv:2604.26326"

    lower: list[float] = numbers([0.6, 0.4], length=2, least=0)
    upper: list[float] = numbers([0.7, 0.5], length=2, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(low > high for low, high in zip(self.lower, self.upper, strict=True)):
            raise UserError(f"lower is {self.lower}; allowed: at most upper ({self.upper}), first and last")

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor | float:
        assert old.entropy is not None
        entropy = batch.global_mean(old.entropy)
        lower, upper = (first + batch.progress * (last - first) for first, last in (self.lower, self.upper))
        if entropy > upper:
            return advantages_T >= 0
        if entropy < lower:
            return advantages_T <= 0
        return 1.0
