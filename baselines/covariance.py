from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.schema import number
from harness.methods.shares import share_of
from harness.methods.verbs import Control, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


def covariance(old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
    """Return each token's part of the covariance of advantage and log p over the rollout batch."""
    return batch.global_centered(advantages_T) * batch.global_centered(old.logp)


def chosen(fraction: float, batch: TokenBatch) -> int:
    """Return the number of tokens in a fraction of the rollout batch: rounded down, and at least one."""
    return max(floor(share_of(fraction, batch.global_tokens())), 1)


ROUNDING = 1e-5  # nats; a few units in the last place of log p in float32


@dataclass(frozen=True)
class ClipCov(Control):
    """Drops a few random tokens among those whose advantage and log-probability vary together.

        cov_t = (A - mean A) (log p - mean log p)

    The means cover the rollout batch on all ranks. Of the tokens with lowest < cov < highest, max(floor(fraction n), 1)
    are drawn with a seed and dropped, where n is the number of all tokens.

    Defaults: the released scripts. They also open the clip of the ratio, and their loss has no dual clip:
    `clip_cov_release` has both.

    Differs: the authors' code selects in each micro-batch at the update, among tokens whose ratio is not clipped, with
    an unseeded draw. Here the selection covers the rollout batch before the update, when no ratio is clipped.
    """

    source = "arXiv:2505.22617"

    fraction: float = number(2e-4, least=0, most=1)
    lowest: float = number(1.0, least=0)
    highest: float = number(5.0, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lowest >= self.highest:
            raise UserError(f"lowest is {self.lowest}; allowed: less than highest ({self.highest})")

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        cov_T = covariance(old, advantages_T, batch)
        outside_T = (cov_T <= self.lowest) | (cov_T >= self.highest)
        lot_T = batch.uniform_T("clip_cov").masked_fill(outside_T, -1)
        return outside_T | (batch.global_order(lot_T) >= chosen(self.fraction, batch))


@dataclass(frozen=True)
class KlCov(Control):
    """Keeps the tokens whose advantage and log-probability vary together most near the old policy.

        cov_t = (A - mean A) (log p - mean log p)
        L_t   = coefficient |log p - log p_old|, for the max(floor(fraction n), 1) tokens with the largest cov_t

    All other tokens have no such term. The means, and the selection among all n tokens, cover the rollout batch on all
    ranks. At one update per rollout batch the gradient is that of the objective alone, as in the authors' code. A token
    without advantage can be selected, so no response is skipped. A distance of up to 1e-5 has no slope: by rounding in
    float32 the same policy has such distances where the passes differ in their micro-batches.

    Defaults: the released script for 7 B (for 32 B: `fraction=2e-4`). Their surrogate has no clip: `kl_cov_release`.

    Differs: the authors' code selects in each micro-batch.
    """

    source = "arXiv:2505.22617"

    fraction: float = number(0.002, least=0, most=1)
    coefficient: float = number(1.0, least=0)

    def marks(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        order_T = batch.global_order(covariance(old, advantages_T, batch))
        return {"held": order_T < chosen(self.fraction, batch)}

    def term(self, view: View) -> Tensor:
        distance_T = (view.current.logp - view.old.logp).abs()
        # The slope of |x| is 1 or -1 at the smallest x, so rounding would decide the first gradient.
        distance_T = distance_T.where(distance_T > ROUNDING, distance_T.detach())
        return self.coefficient * distance_T * view.marks["held"]
