from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.method import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Opefo(Control):
    """Balances the tokens that raise the entropy with those that lower it.

    dH_t = -A (S* - N), D+ the sum of the positive ones over the rollout batch, D- that of the negative ones without
    sign, and lambda = (D- - D+) / (D- + D+): tokens that raise the entropy weigh 1 + lambda, those that lower it
    1 - lambda, so that both sides are equally strong, 2 D+ D- / (D- + D+).

    Known from summaries only, which do not tell whether dH_t is with N or without. It is meant for strictly one
    update per rollout batch (train.updates=1): with more, the balance holds for the first of them.
    """

    source = "arXiv:2605.11491"
    needs = frozenset({"sum_p2"})

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        change_T = advantages_T * (old.expected_discriminator - old.discriminator)
        rising, falling = batch.global_sum(change_T.clamp(min=0)), batch.global_sum((-change_T).clamp(min=0))
        tilt = (falling - rising) / (falling + rising).clamp(min=1e-300)
        return 1 + tilt * change_T.sign()
