from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.base.shares import share_of
from harness.method import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class TopEntropy(Control):
    """Learns from the tokens of highest entropy alone, as the 80/20 rule does.

    w_t = 1 for the ceil(share n) tokens of the rollout batch with the largest H, before the update; of equal ones the
    earlier. The paper divides by all tokens, as is done here; the authors' code by the kept ones alone, which is
    reference_denominator=true and makes the loss 1 / share times as large.

    The authors' code takes the quantile in each micro-batch, of the present entropy.
    """

    source = "arXiv:2506.01939"

    share: float = number(0.2, above=0, most=1)

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        assert old.entropy is not None
        return batch.global_order(old.entropy) < ceil(share_of(self.share, batch.global_tokens()))
