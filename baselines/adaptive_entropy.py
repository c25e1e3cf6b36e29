from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.schema import number
from harness.method import Control, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AdaptiveEntropy(Control):
    """An entropy bonus that is on below a target entropy, with a coefficient that moves towards the target.

    L_t = -c_k 1[H_{k-1} <= target] H_t, with H_k the mean entropy before the update of step k, and afterwards
    c_{k+1} = clip(c_k + delta sign(target - H_k), lowest, highest). The indicator follows the step before, as in the
    released code, whose values are the defaults (the paper has delta 0.005); it is off before the first step is over.
    """

    source = "arXiv:2505.22312"
    needs = frozenset({"entropy_grad"})

    target: float = number(0.2, least=0)
    delta: float = number(1e-4, least=0)
    lowest: float = number(0.0, least=0)
    highest: float = number(0.005, least=0)
    start: float = number(0.0, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lowest <= self.start <= self.highest:
            raise UserError(f"start is {self.start}; allowed: from lowest ({self.lowest}) to highest ({self.highest})")

    @cached_property
    def remembered(self) -> dict[str, float]:
        return {"coefficient": self.start, "active": 0.0}

    def term(self, view: View) -> Tensor:
        assert view.current.entropy is not None
        return -self.remembered["coefficient"] * self.remembered["active"] * view.current.entropy

    def observe(self, metrics: Mapping[str, float]) -> None:
        entropy, coefficient = metrics["entropy/mean"], self.remembered["coefficient"]
        direction = (entropy < self.target) - (entropy > self.target)
        self.remembered["coefficient"] = min(max(coefficient + self.delta * direction, self.lowest), self.highest)
        self.remembered["active"] = float(entropy <= self.target)
