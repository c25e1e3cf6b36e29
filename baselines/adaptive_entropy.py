from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.schema import number
from harness.methods.verbs import Control, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AdaptiveEntropy(Control):
    """An entropy bonus that is on below a target entropy and whose coefficient moves toward the target.

        L_t     = -c_k 1[H_{k-1} <= target] H_t
        c_{k+1} = clip(c_k + delta sign(target - H_k), lowest, highest)

    H_k is the mean entropy of rollout batch k before its update, and c_0 is start. The indicator follows the previous
    step, as in the released code; the bonus is off until the first step is over.

    Defaults: the released scripts. The paper has `delta=0.005`.

    Differs: no difference is known.

    Logs: `state/adaptive_entropy/coefficient` is c for the next step, `state/adaptive_entropy/active` is 1 if the bonus
    is on in the next step, else 0.
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
        entropy = metrics["entropy/mean"]
        direction = (entropy < self.target) - (entropy > self.target)
        moved = self.remembered["coefficient"] + self.delta * direction
        self.remembered["coefficient"] = min(max(moved, self.lowest), self.highest)
        self.remembered["active"] = float(entropy <= self.target)
