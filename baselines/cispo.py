from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.errors import UserError
from harness.base.schema import number
from harness.methods.verbs import View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Cispo(GroupObjective):
    """REINFORCE weighted by a clipped ratio, so that no token loses its gradient.

        J_t = sg[clip(r_t, 1 - clip_low, bound)] A log p_t

    The advantage is GRPO's. `clip_low=null` removes the lower bound. The upper bound can be written in two ways:
    `bound` is the bound itself; `clip_high`, used in place of it, is its distance above 1, as in the paper.

    Defaults: a bound of 5 as in TRL and ScaleRL.

    Differs: MiniMax's values are not published; its form is `clip_high` without `clip_low`.
    """

    source = "arXiv:2506.13585"
    silent_without_signal = True

    bound: float = number(5.0, least=1)
    clip_high: float | None = number(None, least=0)
    clip_low: float | None = number(None, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_high is not None and self.bound != type(self).bound:
            raise UserError(
                f"both clip_high ({self.clip_high}) and bound ({self.bound}) are given; allowed: one "
                "(clip_high=null takes it away)"
            )

    @property
    def bounds(self) -> tuple[float | None, float]:
        """The smallest weight of a token, None for no bound, and the largest."""
        low = None if self.clip_low is None else 1 - self.clip_low
        high = self.bound if self.clip_high is None else 1 + self.clip_high
        return low, high

    def surrogate(self, view: View) -> Tensor:
        return view.ratio_T.detach().clamp(*self.bounds) * view.advantages_T * view.current.logp

    def clips(self, view: View) -> tuple[Tensor, Tensor]:
        ratio_T, bounded_T = view.ratio_T, view.ratio_T.clamp(*self.bounds)
        return ratio_T < bounded_T, ratio_T > bounded_T
