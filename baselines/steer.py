from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.schema import choice, number
from harness.methods.verbs import LARGEST_LOG_RATIO, Control, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Steer(Control):
    """Weighs tokens down by how much their update is predicted to move the entropy.

        Omega_t = (A / p_old) p (1 - p) (log p + H)
        mode=linear:      w = highest - (|Omega| - min) / (max - min) (highest - lowest), within lowest to highest
        mode=exponential: w = lowest^(|Omega| / max(max, 0.02)), within lowest to 1

    Omega is of the present policy at each update, without gradient; min and max are those of |Omega| over the rollout
    batch on all ranks before the update. A later |Omega| may lie outside that range, so its weight is bounded.

    Defaults: the released code, which has both modes.

    Differs: in the authors' code min and max are those of the micro-batch at each update.
    """

    source = "arXiv:2510.10150"
    needs = frozenset({"entropy_now"})

    mode: str = choice("linear", ("linear", "exponential"))
    lowest: float = number(0.8, above=0, most=1)
    highest: float = number(1.2, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "exponential" and self.highest != type(self).highest:
            raise UserError(f"highest is {self.highest}; allowed: only with mode=linear")

    def marks(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        size_T = omega(old, old, advantages_T).abs()
        least = -batch.global_kth_largest(-size_T, 1)
        return {"least": least, "most": batch.global_kth_largest(size_T, 1)}

    def gate(self, view: View) -> Tensor:
        size_T = omega(view.current, view.old, view.advantages_T).abs()
        least, most = view.marks["least"], view.marks["most"]
        if self.mode == "exponential":
            return (log(self.lowest) * size_T / most.clamp(min=0.02)).exp().clamp(min=self.lowest)
        part_T = (size_T - least) / (most - least).clamp(min=1e-12)
        return self.highest - part_T.clamp(0, 1) * (self.highest - self.lowest)


def omega(current: TokenStats, old: TokenStats, advantages_T: Tensor) -> Tensor:
    """Return the change of entropy predicted for one step on each token, up to its sign."""
    assert current.entropy is not None
    logp_T = current.logp.detach()
    ratio_T = (logp_T - old.logp).clamp(max=LARGEST_LOG_RATIO).exp()
    return advantages_T * ratio_T * (1 - logp_T.exp()) * (logp_T + current.entropy)
