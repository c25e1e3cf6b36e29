from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from typing import TYPE_CHECKING

from baselines.clip_b import ClipB
from baselines.clip_v import ClipV
from harness.base.errors import UserError
from harness.base.schema import choice, number
from harness.methods.shares import share_of
from harness.methods.verbs import Control, View

if TYPE_CHECKING:
    from torch import Tensor

    from harness.methods.batch import TokenBatch, TokenStats

CLIPS = {"clip_b": ClipB, "clip_v": ClipV}


@dataclass(frozen=True)
class ClipServo(Control):
    """Clip_B or Clip_V with a share that follows a target entropy.

        share_k      = memory_k exp(damping (target - H_k))
        memory_{k+1} = memory_k exp(gain (target - H_k))
        both within lowest to highest; memory_0 = start

    H_k is the mean entropy of rollout batch k before its update; a higher share keeps more entropy. This is
    proportional-integral control of the logarithm of the share. A share sets the speed of the entropy and not its
    level, so with the integral alone (`damping=0`) the entropy swings around its target. Against windup, the memory
    does not rise after a step in which less than half of the share was dropped for lack of tokens to drop.

    In `mode=reference` a clip drops only tokens that lower the entropy. It can stop a falling entropy but cannot lower
    a rising one: the share then goes to lowest.

    Defaults: ours, for the model of the demo.

    Differs: no other implementation exists.

    Logs: `clip_servo/asked` is the requested share in whole tokens, `clip_servo/dropped` the share that was dropped,
    `state/clip_servo/share` the memory after the step.
    """

    source = "entrobench, after arXiv:2602.03392"

    by: str = choice("clip_b", tuple(CLIPS))
    mode: str = choice("reference", ("reference", "paper"))
    target: float = number(0.3, least=0)
    gain: float = number(0.5, least=0)
    damping: float = number(10.0, least=0)
    start: float = number(0.02, above=0, most=1)
    lowest: float = number(1e-3, above=0, most=1)
    highest: float = number(0.2, above=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lowest <= self.start <= self.highest:
            raise UserError(f"start is {self.start}; allowed: from lowest ({self.lowest}) to highest ({self.highest})")

    @property
    def needs(self) -> frozenset[str]:
        return CLIPS[self.by]().needs

    @cached_property
    def remembered(self) -> dict[str, float]:
        return {"share": self.start}

    def weights(self, old: TokenStats, advantages_T: Tensor, batch: TokenBatch) -> Tensor | float:
        clip = CLIPS[self.by](mode=self.mode, share=self.share(old, batch))
        return clip.weights(old, advantages_T, batch)

    def share(self, old: TokenStats, batch: TokenBatch) -> float:
        """Return the requested share."""
        assert old.entropy is not None
        return self.moved(self.damping * (self.target - batch.global_mean(old.entropy).item()))

    def moved(self, logarithm: float) -> float:
        """Return the remembered share after a move of its logarithm, within its bounds."""
        log_share = log(self.remembered["share"]) + logarithm
        return exp(min(max(log_share, log(self.lowest)), log(self.highest)))

    def metrics(self, view: View) -> Mapping[str, float]:
        """Return the requested share, in whole tokens, and the dropped share."""
        tokens = view.batch.global_tokens()
        kept_T = self.weights(view.old, view.advantages_T, view.batch) * view.old.logp.new_ones(view.old.logp.shape)
        dropped = view.batch.global_count(kept_T == 0)
        asked = round(share_of(self.share(view.old, view.batch), tokens))
        return {"asked": asked / tokens, "dropped": dropped / tokens}

    def observe(self, metrics: Mapping[str, float]) -> None:
        moved = self.moved(self.gain * (self.target - metrics["entropy/mean"]))
        exhausted = metrics["dropped"] < metrics["asked"] / 2
        self.remembered["share"] = min(moved, self.remembered["share"]) if exhausted else moved
