from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import TYPE_CHECKING

from baselines.clip_b import ClipB
from baselines.clip_v import ClipV
from harness.base.errors import UserError
from harness.base.schema import choice, number
from harness.method import Control, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.batch import TokenBatch, TokenStats

CLIPS = {"clip_b": ClipB, "clip_v": ClipV}


@dataclass(frozen=True)
class ClipServo(Control):
    """Clips as Clip_B or Clip_V do, with a share that follows a target entropy.

    share_{k+1} = share_k exp(gain (target - H_k)), within lowest to highest, with H_k the mean entropy of rollout batch
    k before its update: integral control of the share's logarithm. A higher share keeps more entropy. Against windup
    the share does not rise after a step in which less than half of it was dropped, for want of tokens to drop.

    In mode reference a clip drops only tokens that lower the entropy, so it holds a falling entropy up and cannot push
    a rising one down: then the share goes to lowest.
    """

    source = "entrobench, after arXiv:2602.03392"
    needs = frozenset({"sum_p2"})

    by: str = choice("clip_b", tuple(CLIPS))
    mode: str = choice("reference", ("reference", "paper"))
    target: float = number(0.3, least=0)
    gain: float = number(1.0, above=0)
    start: float = number(0.02, above=0, most=1)
    lowest: float = number(1e-3, above=0, most=1)
    highest: float = number(0.2, above=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lowest <= self.start <= self.highest:
            raise UserError(f"start is {self.start}; allowed: from lowest ({self.lowest}) to highest ({self.highest})")

    @cached_property
    def memory(self) -> dict[str, float]:
        return {"share": self.start}

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor | float:
        clip = CLIPS[self.by](mode=self.mode, share=self.memory["share"])
        return clip.weights(old, advantages_T, batch)

    def metrics(self, view: View) -> Mapping[str, float]:
        """Returns the share that was asked for, in whole tokens, and what of it was dropped."""
        tokens = view.batch.global_tokens()
        kept_T = self.weights(view.old, view.advantages_T, view.batch) * view.old.logp.new_ones(view.old.logp.shape)
        dropped = view.batch.global_count(kept_T == 0)
        return {"asked": round(self.memory["share"] * tokens) / tokens, "dropped": dropped / tokens}

    def observe(self, metrics: Mapping[str, float]) -> None:
        share = self.memory["share"]
        moved = min(max(share * exp(self.gain * (self.target - metrics["entropy/mean"])), self.lowest), self.highest)
        exhausted = metrics["clip_servo/dropped"] < metrics["clip_servo/asked"] / 2
        self.memory["share"] = min(moved, share) if exhausted else moved

    def state(self) -> dict[str, float]:
        return dict(self.memory)

    def load_state(self, state: Mapping[str, float]) -> None:
        self.memory.update(state)
