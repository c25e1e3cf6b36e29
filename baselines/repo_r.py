from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.schema import number
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class RepoR(Control):
    """Strengthens the advantage of improbable right tokens and weakens the advantage of improbable wrong tokens.

        A' = max(A (1 - zeta log p_old), 0)   where A > 0
             min(A (1 + zeta log p_old), 0)   where A < 0

    With a target, zeta is doubled after each step whose mean entropy was below the target, and halved after each step
    above it, within lowest to highest.

    Defaults: a description of one framework's version.

    Differs: known from that description only, in which the controller has no bounds; `lowest` and `highest` are ours.

    Logs: `state/repo_r/zeta` is zeta for the next step.
    """

    source = "arXiv:2603.11682"

    zeta: float = number(0.01, least=0)
    target: float | None = number(None, least=0)
    lowest: float = number(1e-4, above=0)
    highest: float = number(1.0, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target is not None and not self.lowest <= self.zeta <= self.highest:
            raise UserError(f"zeta is {self.zeta}; allowed: from lowest ({self.lowest}) to highest ({self.highest})")
        if self.target is None and (self.lowest, self.highest) != (type(self).lowest, type(self).highest):
            raise UserError(f"lowest and highest are {self.lowest} and {self.highest}; allowed: only with a target")

    @cached_property
    def remembered(self) -> dict[str, float]:
        return {"zeta": self.zeta}

    def reshape(self, advantages_T: Tensor, old: TokenStats, batch: TokenBatch) -> Tensor:
        factor_T = 1 - self.remembered["zeta"] * old.logp * advantages_T.sign()
        return advantages_T * factor_T.clamp(min=0)

    def observe(self, metrics: Mapping[str, float]) -> None:
        if self.target is not None:
            entropy = metrics["entropy/mean"]
            zeta = self.remembered["zeta"] * 2.0 ** ((entropy < self.target) - (entropy > self.target))
            self.remembered["zeta"] = min(max(zeta, self.lowest), self.highest)
