"""The curves of a run: each with its smoothed values, and the keys under which each trainer logs it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from harness.base.units import sparkline

OURS, TRL, VERL = "entrobench", "TRL", "verl"
CSV = "CSV"  # a table whose columns have the keys of any of them
# Prefix of our keys that our methods log in TRL (entrobench.trl) and in verl (entrobench.verl).
DOOR = "entrobench/"
BONUS = "entropy_bonus.coefficient"  # from the configuration of a cell: no step logs it
SIDES = ("ratio/clipped_low", "ratio/clipped_high")
CLIPPED = " + ".join(SIDES)

TRAINERS = (OURS, TRL, VERL)
Keys = tuple[str, ...]

# By name: the keys of entrobench, TRL 1.16 and verl 0.9, the newest first; empty where a trainer logs no such curve.
# TRL's keys were read in `grpo_trainer.py`, verl's in `metric_utils.py`, `core_algos.py` and `utils/debug/metrics.py`.
SIGNALS: Mapping[str, tuple[Keys, Keys, Keys]] = {
    "entropy": (("entropy/mean",), ("entropy",), ("actor/entropy", "actor/entropy_loss")),
    "reward": (("reward/mean",), ("reward",), ("critic/score/mean", "critic/rewards/mean")),
    # TRL's and verl's rewards have no known maximum, so their curves cannot say that nearly all answers are right.
    "right": (("reward/mean",), (), ()),
    "without_signal": (("reward/groups_without_signal",), ("frac_reward_zero_std",), ()),
    "unparsed": (("verdicts/unparsed",), (), ()),
    "distinct": (("responses/distinct_answers",), (), ()),
    "truncated": (("responses/truncated",), ("completions/clipped_ratio",), ("response_length/clip_ratio",)),
    "after_answer": (("responses/after_answer",), (), ()),
    "clipped": ((CLIPPED,), ("clip_ratio/region_mean",), ("actor/pg_clipfrac",)),
    "gradient": (("gradient/norm",), ("grad_norm",), ("actor/grad_norm",)),
    # The mean of old minus present log p over the updates of a step, which entrobench and TRL do not log.
    "step_kl": ((), (), ("actor/ppo_kl",)),
    "reference_kl": ((), ("kl",), ("actor/kl_loss",)),
    # verl's is of probabilities, which differ at most as much as their logarithms.
    "mismatch": (
        ("mismatch/mean",),
        ("sampling/sampling_logp_difference/mean",),
        ("training/rollout_probs_diff_mean",),
    ),
    "bonus": ((BONUS, "entropy_bonus/coefficient", "state/adaptive_entropy/coefficient"), ("entropy_coef",), ()),
    "positive_mass": (("mass/positive",), (f"{DOOR}mass/positive",), (f"{DOOR}mass/positive",)),
    "negative_mass": (("mass/negative",), (f"{DOOR}mass/negative",), (f"{DOOR}mass/negative",)),
    "push_likely_right": (("dynamics/positive_above/push",), (), ()),
    "push_unlikely_wrong": (("dynamics/negative_below/push",), (), ()),
}

KEYS = {key for by_trainer in SIGNALS.values() for keys in by_trainer for key in keys} | {*SIDES}

REACH = 2  # points on each side of a running median: one or two outliers do not move it, and it follows in two points
ENDLESS = 1e100  # counts as infinite: a sum of such values would overflow
BARS_SHOWN = 40  # of a sparkline: with the numbers in front of it, it fits into a line of 120 characters


@dataclass(frozen=True)
class MetricCurve:
    """The finite values of one metric, by step."""

    key: str
    steps: Sequence[int]
    values: Sequence[float]
    lost: int | None = None  # the first step at which it was logged and not finite

    @cached_property
    def smooth(self) -> list[float]:
        """The running median, over fewer points at both ends."""
        places = range(len(self.values))
        return [median(self.values[max(place - REACH, 0) : place + REACH + 1]) for place in places]

    @property
    def start(self) -> float:
        return self.smooth[0]

    @property
    def end(self) -> float:
        return self.smooth[-1]

    def since(self, holds: Callable[[float], bool]) -> int | None:
        """Return the first step whose smoothed value meets a condition."""
        return next((step for step, value in zip(self.steps, self.smooth, strict=True) if holds(value)), None)

    def at(self, step: int, *, smoothed: bool = True) -> float:
        """Return the value at a step, or at the last one before it at which the metric was logged."""
        place = max(bisect_right(self.steps, step) - 1, 0)
        return self.smooth[place] if smoothed else self.values[place]

    def bars(self) -> str:
        """Return a sparkline of the values, means of neighbors where there are more values than bars."""
        count = min(len(self.values), BARS_SHOWN)
        edges = [bar * len(self.values) // count for bar in range(count + 1)]
        return sparkline([fmean(self.values[first:after]) for first, after in pairwise(edges)])


def curve_of(key: str, points: dict[int, float]) -> MetricCurve:
    """Return the curve of a metric from its values by step, in any order."""
    finite = {step: value for step, value in sorted(points.items()) if abs(value) < ENDLESS}
    lost = min(points.keys() - finite.keys(), default=None)
    return MetricCurve(key, list(finite), list(finite.values()), lost)


@dataclass(frozen=True)
class LoggedRun:
    """The curves of one run by key, as a trainer has logged them."""

    path: Path
    trainer: str
    curves: Mapping[str, MetricCurve]
    method: str | None = None  # known of a cell of ours
    stopped: int | None = None  # the step at which stop.entropy_below ended a cell of ours
    notes: list[str] = field(default_factory=list)

    def signal(self, name: str, *, finite: bool = True) -> MetricCurve | None:
        """Return the curve of a signal; None if the run has not logged it, or if `finite` no finite value of it."""
        for key in signal_keys(name, self.trainer):
            curve = self.curves.get(key)
            if curve is not None and (curve.steps or not finite):
                return curve
        return None


def signal_keys(name: str, trainer: str) -> Keys:
    """Return the keys under which a trainer may log a signal."""
    if trainer == CSV:
        return tuple(key for keys in SIGNALS[name] for key in keys)
    return SIGNALS[name][TRAINERS.index(trainer)]
