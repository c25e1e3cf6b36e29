from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import floor
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.schema import number
from harness.methods.shares import share_of
from harness.methods.verbs import Control, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats

WITH_TARGET = ("gain", "start", "lowest", "highest", "memory")


@dataclass(frozen=True)
class ClipPredict(Control):
    """Drops the fewest tokens that bring the predicted change of the mean entropy to the wanted change.

        c_t = -A (S* - N)
        P   = mean c_t over the rollout batch

    c_t is the contribution of token t to the predicted change P, for a common step of the logits. While P is below the
    wanted change, the tokens with the most negative c are dropped; while it is above, the tokens with the most positive
    c. At most the share `most` of all tokens is dropped.

    Without a target the wanted change is 0, which holds the entropy as far as the prediction goes. With a target it is

        gain (target - H_k) / slope

    H_k is the mean entropy before the update, so the gap shrinks by the fraction `gain` in each step. The slope is
    measured: with x_k the change predicted for the kept tokens, it is the average of x_k (H_{k+1} - H_k) divided by the
    average of x_k^2, within lowest to highest. Both averages decay by the factor `memory` in each step, and the slope
    starts at `start`.

    Defaults: ours.

    Differs: no other implementation exists. The prediction covers the first update and the advantage of the objective
    alone: tokens dropped by other controls, KL terms and clips of the ratio are not part of it.

    Logs: `clip_predict/wanted` is the wanted change, `clip_predict/predicted_all` the change predicted with all tokens
    and `clip_predict/predicted` with the kept ones, in nats per unit of logit step. With a target,
    `state/clip_predict/slope` is the slope, `state/clip_predict/xy` and `state/clip_predict/xx` are the two averages,
    and `state/clip_predict/entropy` and `state/clip_predict/predicted` are H and x of the last step.
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
        # How much dropping each token brings the sum closer to the wanted one.
        brings_T = (-change_T * missing.sign()).clamp(min=0)
        falling_T = batch.global_sorted(brings_T)
        enough = (falling_T.cumsum(0) < missing.abs()).sum() + 1
        able = (falling_T > 0).sum().clamp(max=floor(share_of(self.most, batch.global_tokens())))
        return batch.global_order(brings_T) >= enough.minimum(able)

    def wanted(self, old: TokenStats, batch: TokenBatch) -> Tensor | float:
        """Return the change to reach, in units of the prediction."""
        assert old.entropy is not None
        if self.target is None:
            return 0.0
        return self.gain * (self.target - batch.global_mean(old.entropy)) / self.remembered["slope"]

    def metrics(self, view: View) -> Mapping[str, float]:
        """Return the wanted change, and the changes predicted with all tokens and with the kept ones."""
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
        entropy = metrics["entropy/mean"]
        state = self.remembered
        if "entropy" in state:
            x = state["predicted"]
            y = entropy - state["entropy"]
            for name, value in (("xy", x * y), ("xx", x * x)):
                state[name] = self.memory * state.get(name, 0.0) + (1 - self.memory) * value
            if state["xx"]:
                state["slope"] = min(max(state["xy"] / state["xx"], self.lowest), self.highest)
        state |= {"entropy": entropy, "predicted": metrics["predicted"]}


def predicted(old: TokenStats, advantages_T: Tensor) -> Tensor:
    """Return each token's contribution to the predicted change of entropy, in double."""
    return (advantages_T * (old.expected_discriminator - old.discriminator)).double()
