from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.schema import number
from harness.base.shares import share_of
from harness.method import Control, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats


def covariance(old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
    """Returns each token's part of the covariance of advantage and log p over the rollout batch."""
    return batch.global_centered(advantages_T) * batch.global_centered(old.logp)


def chosen(fraction: float, batch: TokenBatch) -> int:
    """Return how many tokens a fraction of the rollout batch is: rounded down, and at least one."""
    return max(floor(share_of(fraction, batch.global_tokens())), 1)


@dataclass(frozen=True)
class ClipCov(Control):
    """Drops a few random tokens among those whose advantage and log-probability vary together.

    cov_t = (A - mean A) (log p - mean log p), with means over the rollout batch on all ranks. Of the tokens with
    lowest < cov < highest, max(floor(fraction n), 1) are dropped, n being the number of all tokens.

    The authors' code selects in each micro-batch, at the update, and not among tokens that the ratio clip has already
    taken; here the selection is over the rollout batch before the update, by seeded chance. Its clip of the ratio is
    opened, and there is no dual clip: clip_cov_release.
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
    """Holds the tokens whose advantage and log-probability vary together most near the policy before the update.

    L_t = coefficient |log p - log p_old| for the max(floor(fraction n), 1) tokens of the rollout batch with the largest
    cov_t = (A - mean A) (log p - mean log p), and 0 for all others.

    The authors' code selects in each micro-batch, and its surrogate has no clip: kl_cov_release. At one update per
    rollout batch the gradient is that of the objective alone.
    """

    source = "arXiv:2505.22617"

    fraction: float = number(0.002, least=0, most=1)
    coefficient: float = number(1.0, least=0)

    def marks(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        order_T = batch.global_order(covariance(old, advantages_T, batch))
        return {"held": order_T < chosen(self.fraction, batch)}

    def term(self, view: View) -> Tensor:
        return self.coefficient * (view.current.logp - view.old.logp).abs() * view.marks["held"]
