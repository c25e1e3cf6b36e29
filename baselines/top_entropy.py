from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from harness.base.schema import number
from harness.methods.shares import share_of
from harness.methods.verbs import Control

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class TopEntropy(Control):
    """Learns from the tokens of highest entropy only: the 80/20 rule.

        w_t = 1 for the ceil(share n) tokens of the rollout batch with the largest H, else 0

    H is the entropy before the update; among equal values, the earlier token is kept.

    Defaults: paper and code.

    Differs: the paper's formula divides by all tokens, which is the default here. The released code divides by the kept
    tokens (here `reference_denominator=true`), so its loss is 1/share times as large. It uses the present H of each
    micro-batch.
    """

    source = "arXiv:2506.01939"

    share: float = number(0.2, above=0, most=1)

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        assert old.entropy is not None
        return batch.global_order(old.entropy) < ceil(share_of(self.share, batch.global_tokens()))
