"""One logged metric over the steps of a run: smoothed, its ends, and the step at which it crosses a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from statistics import fmean, median

from harness.terminal.units import sparkline

REACH = 2  # points on each side of a running median: one or two outliers do not move it, and it follows in two points
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
        medians = []
        for place in range(len(self.values)):
            window = self.values[max(place - REACH, 0) : place + REACH + 1]
            medians.append(median(window))
        return medians

    @property
    def start(self) -> float:
        return self.smooth[0]

    @property
    def end(self) -> float:
        return self.smooth[-1]

    def since(self, holds: Callable[[float], bool]) -> int | None:
        """Return the first step whose smoothed value meets a condition."""
        for step, value in zip(self.steps, self.smooth, strict=True):
            if holds(value):
                return step
        return None

    def at(self, step: int, *, smoothed: bool = True) -> float:
        """Return the value at a step, or at the last one before it at which the metric was logged."""
        place = 0
        for number, own_step in enumerate(self.steps):
            if own_step <= step:
                place = number
        return self.smooth[place] if smoothed else self.values[place]

    def bars(self) -> str:
        """Return a sparkline of the values, means of neighbors where there are more values than bars."""
        count = min(len(self.values), BARS_SHOWN)
        means = []
        for bar in range(count):
            first, after = bar * len(self.values) // count, (bar + 1) * len(self.values) // count
            means.append(fmean(self.values[first:after]))
        return sparkline(means)


def curve_of(key: str, points: dict[int, float]) -> MetricCurve:
    """Return the curve of a metric from its values by step, in any order."""
    steps, values = [], []
    lost = None
    for step, value in sorted(points.items()):
        if isfinite(value):
            steps.append(step)
            values.append(value)
        elif lost is None:
            lost = step
    return MetricCurve(key, steps, values, lost)
