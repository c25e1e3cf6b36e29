from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from math import floor, inf
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.schema import choice, number
from harness.methods.shares import share_of
from harness.methods.verbs import ClippedObjective, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch


@dataclass(frozen=True)
class ByEntropy(ClippedObjective, GroupObjective):
    """Base of objectives with a different clip and KL term for tokens of high entropy."""

    needs = frozenset({"entropy_now"})
    silent_without_signal = True

    kl_coef: float = number(0.001, least=0)
    kl_estimator: str = choice("k3", ("k2", "k3"))
    quantile: float = number(0.8, least=0, most=1)
    high_entropy_clip_low: float = number(0.5, least=0)
    high_entropy_clip_high: float = number(0.5, least=0)
    high_entropy_kl: float = number(0.0, least=0)  # times kl_coef

    def uncertain(self, view: View) -> Tensor:
        """Return the mask of tokens of high entropy."""
        assert view.current.entropy is not None
        return above_quantile(view.current.entropy.detach(), self.quantile, view.batch)

    def bounds(self, view: View) -> tuple[Tensor, Tensor]:
        wide = dataclasses.replace(self, clip_low=self.high_entropy_clip_low, clip_high=self.high_entropy_clip_high)
        wide_low_T, wide_high_T = ClippedObjective.bounds(wide, view)
        low_T, high_T = super().bounds(view)
        uncertain_T = self.uncertain(view)
        return wide_low_T.where(uncertain_T, low_T), wide_high_T.where(uncertain_T, high_T)

    def term(self, view: View) -> Tensor | float:
        if not self.kl_coef:
            return 0.0
        kl_T = self.divergence(view.current)
        return self.kl_coef * (self.high_entropy_kl * kl_T).where(self.uncertain(view), kl_T)


def above_quantile(x_T: Tensor, quantile: float, batch: TokenBatch) -> Tensor:
    """Return the mask of values above the quantile of their response, interpolated between neighbors in their order."""
    if not len(x_T):
        return x_T > 0
    x_BR = x_T.new_full((len(batch), int(batch.lengths_B.max())), inf)
    x_BR[batch.sequence_T, batch.within_T] = x_T
    # A value is above the interpolated quantile exactly if it is above the sorted value at the place rounded down.
    places = [floor(share_of(quantile, max(length - 1, 0))) for length in batch.lengths_B.tolist()]
    bound_B = x_BR.sort(1).values.gather(1, batch.lengths_B.new_tensor(places)[:, None])[:, 0]
    return x_T > bound_B[batch.sequence_T]


@dataclass(frozen=True)
class Archer(ByEntropy):
    """GRPO with a wider clip and no KL term for tokens of high entropy.

    A token is of high entropy if its present H is above a quantile of its own response. Advantage and objective are
    GRPO's, with these options:

        H at most the quantile:  clip_low, clip_high, KL weight kl_coef
        H above the quantile:    high_entropy_clip_low, high_entropy_clip_high, KL weight kl_coef high_entropy_kl

    The KL term is toward the model before training, which is not loaded with `kl_coef=0`.

    Defaults: wizard-III/ArcherCodeR, whose narrow clips are the shared ones here.

    Differs: the authors' code divides the KL term of either kind by the number of tokens of that kind; here it is
    divided by the number of all tokens.
    """

    source = "arXiv:2507.15778"

    dual_clip: float | None = number(10.0, least=1)
