from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baselines.grpo import GroupObjective
from harness.base.errors import UserError
from harness.base.schema import number
from harness.methods.verbs import ClippedObjective, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats


@dataclass(frozen=True)
class Bapo(ClippedObjective, GroupObjective):
    """GRPO whose clip opens until the positive tokens contribute a given share of the loss.

        P = sum min(r, high) A     over tokens with A > 0
        N = sum max(r, low) |A|    over tokens with A < 0

    In each mini-batch, before its update, the bounds start at low = 1 - clip_low and high = 1 + clip_high. While P <
    target N, low rises to 1 - least_clip_low, and then high rises by `step` up to 1 + most_clip_high. `target=1` means
    a share of one half. A higher low only adds to N, so if the start is not enough, low always ends at
    1 - least_clip_low, as in the authors' search. Everything else is GRPO.

    Defaults: low from 0.6 to 0.9, high from 1.2 to 3, and a share of one half are from the README of WooooDyy/BAPO;
    steps of 0.05 and a dual clip of 3 are from its code. Its configuration has low from 0.6 to 0.8 and high from 1.2 to
    2; its example has low from 0.8 to 0.95, high from 1.2 to 2, and a target of 0.5.

    Differs: the authors' code searches on each micro-batch. Here the sums cover the mini-batch on all ranks.
    """

    source = "arXiv:2510.18927"

    clip_low: float = number(0.4, least=0)
    clip_high: float = number(0.2, least=0)
    least_clip_low: float = number(0.1, least=0)
    most_clip_high: float = number(2.0, least=0)
    step: float = number(0.05, above=0)
    target: float = number(1.0, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least_clip_low > self.clip_low:
            raise UserError(f"least_clip_low is {self.least_clip_low}; allowed: up to clip_low ({self.clip_low})")
        if self.most_clip_high < self.clip_high:
            raise UserError(f"most_clip_high is {self.most_clip_high}; allowed: clip_high ({self.clip_high}) and more")

    def marks(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Mapping[str, Tensor]:
        low, high = self.start
        return {"low": advantages_T.new_tensor(low), "high": advantages_T.new_tensor(high)}

    @property
    def start(self) -> tuple[float, float]:
        """The bounds that the search of each mini-batch starts from."""
        return 1 - self.clip_low, 1 + self.clip_high

    def step_marks(self, view: View) -> Mapping[str, Tensor]:
        ratio_T = view.ratio_T
        positive_T = view.advantages_T.clamp(min=0)
        negative_T = -view.advantages_T.clamp(max=0)

        def met(low: float, high: float) -> bool:
            """Return whether the positive tokens have their share; the same on every rank."""
            positive = view.batch.global_sum(ratio_T.clamp(max=high) * positive_T)
            negative = view.batch.global_sum(ratio_T.clamp(min=low) * negative_T)
            return bool(positive >= self.target * negative)

        low, high = self.start
        if not met(low, high):
            low = 1 - self.least_clip_low
            while high < 1 + self.most_clip_high and not met(low, high):
                high = min(high + self.step, 1 + self.most_clip_high)
        return {"low": ratio_T.new_tensor(low), "high": ratio_T.new_tensor(high)}

    def bounds(self, view: View) -> tuple[Tensor, Tensor]:
        low_T, high_T = super().bounds(view)
        low_T = low_T.masked_fill(view.advantages_T < 0, view.marks["low"])
        return low_T, high_T.masked_fill(view.advantages_T > 0, view.marks["high"])
