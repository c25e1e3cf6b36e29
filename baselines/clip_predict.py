from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import floor
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.schema import number
from harness.base.shares import share_of
from harness.method import Control, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats

WITH_TARGET = ("gain", "start", "lowest", "highest", "memory")


@dataclass(frozen=True)
class ClipPredict(Control):
    """Drops the fewest tokens after which the predicted change of the mean entropy is the one that is wanted.

    c_t = -A (S* - N) is what token t adds to the predicted change P = mean c_t over the rollout batch, for a common
    step of the logits. Where P is below the wanted change, the tokens of the most negative c are dropped until it is
    not, where it is above, those of the most positive c; never more than the share most of all tokens.
    Without a target the wanted change is 0: the entropy is held where it is, as far as the prediction goes.
    With a target it is gain (target - H_k) / slope, H_k the mean entropy before the update, so that the gap shrinks by
    the part gain in a step. The slope is measured: x_k being the change predicted with the tokens that were kept, the
    averages of x_k (H_{k+1} - H_k) and of x_k^2, in which each step counts memory times as much as the next, give it as
    their ratio, within lowest to highest.

    What other controls drop, KL terms and clips of the ratio are not part of the prediction.
    """

    source = "entrobench, after arXiv:2602.03392"
    needs = frozenset({"sum_p2"})

    target: float | None = number(None, least=0)
    most: float = number(0.2, above=0, most=1)
    gain: float = number(0.2, above=0, most=1)
    start: float = number(1.0, above=0)
    lowest: float = number(0.1, above=0)
    highest: float = number(10.0, above=0)
    memory: float = number(0.9, least=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lowest <= self.start <= self.highest:
            raise UserError(f"start is {self.start}; allowed: from lowest ({self.lowest}) to highest ({self.highest})")
        for name in WITH_TARGET:
            if self.target is None and vars(self)[name] != getattr(type(self), name):
                raise UserError(f"{name} is {vars(self)[name]}; allowed: only with a target")

    @cached_property
    def remembered(self) -> dict[str, float]:
        return {} if self.target is None else {"slope": self.start}

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor:
        change_T = predicted(old, advantages_T)
        missing = self.wanted(old, batch) * batch.global_tokens() - batch.global_sum(change_T)
        # What dropping each token brings the sum nearer to what is wanted.
        brings_T = (-change_T * missing.sign()).clamp(min=0)
        falling_T = batch.global_sorted(brings_T)
        enough = (falling_T.cumsum(0) < missing.abs()).sum() + 1
        able = (falling_T > 0).sum().clamp(max=floor(share_of(self.most, batch.global_tokens())))
        return batch.global_order(brings_T) >= enough.minimum(able)

    def wanted(self, old: TokenStats, batch: TokenBatch) -> Tensor | float:
        """Returns the change to reach, in units of the prediction."""
        assert old.entropy is not None
        if self.target is None:
            return 0.0
        return self.gain * (self.target - batch.global_mean(old.entropy)) / self.remembered["slope"]

    def metrics(self, view: View) -> Mapping[str, float]:
        """Returns the change that is wanted, and those predicted with all tokens and with the kept ones."""
        old, batch = view.old, view.batch
        change_T = predicted(old, view.advantages_T)
        kept_T = self.weights(old, view.advantages_T, batch)
        return {
            "wanted": float(self.wanted(old, batch)),
            "predicted_all": batch.global_mean(change_T).item(),
            "predicted": batch.global_mean(change_T * kept_T).item(),
        }

    def observe(self, metrics: Mapping[str, float]) -> None:
        if self.target is None:
            return
        now, found = metrics["entropy/mean"], self.remembered
        if "entropy" in found:
            x, y = found["predicted"], now - found["entropy"]
            for name, value in (("xy", x * y), ("xx", x * x)):
                found[name] = self.memory * found.get(name, 0.0) + (1 - self.memory) * value
            if found["xx"]:
                found["slope"] = min(max(found["xy"] / found["xx"], self.lowest), self.highest)
        found |= {"entropy": now, "predicted": metrics["predicted"]}


def predicted(old: TokenStats, advantages_T: Tensor) -> Tensor:
    """Returns what each token adds to the predicted change of entropy, in double."""
    return (advantages_T * (old.expected_discriminator - old.discriminator)).double()
