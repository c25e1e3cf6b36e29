"""The figures of the page as plain data: the series, their meaning, and the same numbers as a table.

A series has the name of a method, by which the page's script colors it, and lists of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pandas import DataFrame

from harness.page.content import PageContent
from harness.statistics import Estimate, mean_interval
from harness.table.frames import BASE_MODEL
from harness.terminal.layout import visible

Series = dict[str, Any]  # name, and lists of numbers
Interval = Callable[[np.ndarray], Estimate]  # of the values of the seeds


@dataclass(frozen=True)
class Figure:
    """A figure as data, with the same numbers as a table."""

    title: str
    note: str  # the meaning of points, bands and bars
    kind: str  # lines | points | rates | dots | bars
    x: str
    y: str
    series: list[Series]
    header: list[str]
    lines: list[list[str]]
    small: bool = False
    # log_x, log_y: logarithmic; ticks: of x; names: x is text; cut: y is limited to 0 to 1
    options: dict[str, Any] = field(default_factory=dict)


def page_number(value: float | None) -> float | None:
    """Return a number that JSON can hold, short enough for a page; None for values that are not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def page_numbers(values: Iterable[float]) -> list[float | None]:
    return [page_number(value) for value in values]


def limits(estimates: Iterable[Estimate]) -> dict[str, list[float | None]]:
    """Return the limits of intervals as series."""
    low, high = [], []
    for estimate in estimates:
        low.append(page_number(estimate.low))
        high.append(page_number(estimate.high))
    return {"low": low, "high": high}


def over_steps(
    title: str,
    note: str,
    y: str,
    curves: DataFrame,
    methods: Sequence[str],
    *,
    interval: Interval = mean_interval,
    small: bool = False,
    **options: Any,
) -> Figure:
    """Return the figure of a metric: the mean over the seeds that have a number at a step, with its 95 % interval.

    `curves`: a row for each method, seed and step.
    """
    estimates = {}
    for method, of_method in by_method(curves[np.isfinite(curves["value"])], methods):
        estimates[method] = estimates_by_step(of_method, interval)
    return estimates_over_steps(title, note, y, estimates, small=small, **options)


def estimates_by_step(of_method: DataFrame, interval: Interval) -> dict[int, Estimate]:
    """Return the estimate over the seeds at each step."""
    ordered = of_method.sort_values("step", kind="stable")
    # Without groupby: a matrix has a hundred thousand such groups, and pandas takes long for each.
    steps, starts = np.unique(ordered["step"].to_numpy(), return_index=True)
    values = np.split(ordered["value"].to_numpy(dtype="float64"), starts[1:])
    return {int(step): interval(of_step) for step, of_step in zip(steps, values, strict=True)}


def estimates_over_steps(
    title: str,
    note: str,
    y: str,
    estimates: Mapping[str, Mapping[int, Estimate]],
    *,
    small: bool = False,
    **options: Any,
) -> Figure:
    """Return the figure of estimates by method and step."""
    series, lines = [], []
    for method, by_step in estimates.items():
        series.append({"name": method, "x": list(by_step), **estimate_band(by_step.values())})
        means = [estimate.mean for estimate in by_step.values()]
        first, last = min(by_step), max(by_step)
        lines.append(
            [
                method,
                f"{short_number(means[0])} (step {first})",
                f"{short_number(means[-1])} (step {last})",
                interval_text(by_step[last]),
                short_number(min(means)),
                short_number(max(means)),
            ]
        )
    header = ["method", "first mean", "last mean", "its 95 % interval", "lowest mean", "highest mean"]
    return Figure(title, note, "lines", "step", y, series, header, lines, small, options)


def estimate_band(estimates: Collection[Estimate]) -> dict[str, list[float | None]]:
    """Return the means and the limits of estimates as series."""
    return {"y": page_numbers(estimate.mean for estimate in estimates), **limits(estimates)}


def interval_text(estimate: Estimate) -> str:
    """Return the limits of an interval; empty if there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{short_number(estimate.low)} to {short_number(estimate.high)}"


def by_method(frame: DataFrame, methods: Sequence[str]) -> Iterator[tuple[str, DataFrame]]:
    """Yield the rows of each method, sorted by seed, in the order of the methods."""
    groups = dict(list(frame.groupby("method")))  # by a list, since dict() takes the grouping for a mapping
    for method in methods:
        if method in groups:
            yield method, groups[method].sort_values("seed", kind="stable")


def short_number(value: float) -> str:
    return f"{value:.4g}"


def drawn_methods(content: PageContent) -> list[str]:
    """Return the names that a series may have: the methods, and the base model if a table has it."""
    rows = list(content.rows)
    for table in content.tables:
        rows += table.rows
    methods = list(content.methods)
    if any(row.method == BASE_MODEL for row in rows):
        methods.append(BASE_MODEL)
    return methods


def payload(figure: Figure) -> dict[str, Any]:
    """Return the parts of a figure that the page's script draws, with control characters written out."""
    parts = {}
    for key in ("kind", "x", "y", "series", "small", "options"):
        parts[key] = drawable(getattr(figure, key))
    return parts


def drawable(value: Any) -> Any:
    """Return a value of JSON with the control characters of its texts written out, names included."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {drawable(key): drawable(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [drawable(child) for child in value]
    return value
