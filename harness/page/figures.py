"""The figures of the page as plain data: the series, their meaning, and the same numbers as a table.

A series names a method; `style` is its place among the methods, which determines color, dashes and marker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pandas import DataFrame

from harness.page.content import PageContent
from harness.statistics import Estimate
from harness.table.frames import BASE_MODEL
from harness.terminal.layout import visible

Series = dict[str, Any]  # name, style, and lists of numbers
Styles = Mapping[str, int]
BAND = {"y": "mean", "low": "min", "high": "max"}  # of a series, from the values of the seeds at a step


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
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


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
    styles: Styles,
    *,
    small: bool = False,
    **options: Any,
) -> Figure:
    """Return the figure of a metric: the mean over the seeds that have a number at a step, and their range.

    `curves`: a row for each method, seed and step.
    """
    series, lines = [], []
    for method, of_method in by_method(curves[np.isfinite(curves["value"])], styles):
        by_step = of_method.groupby("step")["value"].agg(["mean", "min", "max"])
        drawn = {"name": method, "style": styles[method], "x": by_step.index.tolist()}
        for key, column in BAND.items():
            drawn[key] = page_numbers(by_step[column])
        series.append(drawn)
        first, last = by_step.iloc[0], by_step.iloc[-1]
        lines.append(
            [
                method,
                f"{short_number(first['mean'])} (step {first.name})",
                f"{short_number(last['mean'])} (step {last.name})",
                f"{short_number(last['min'])} to {short_number(last['max'])}",
                short_number(by_step["mean"].min()),
                short_number(by_step["mean"].max()),
            ]
        )
    header = ["method", "first mean", "last mean", "seeds at the last step", "lowest mean", "highest mean"]
    return Figure(title, note, "lines", "step", y, series, header, lines, small, options)


def by_method(frame: DataFrame, styles: Styles) -> Iterator[tuple[str, DataFrame]]:
    """Yield the rows of each method, sorted by seed, in the order of the methods."""
    groups = dict(list(frame.groupby("method")))
    for method in styles:
        if method in groups:
            yield method, groups[method].sort_values("seed", kind="stable")


def short_number(value: float) -> str:
    return f"{value:.4g}"


def styles_of(content: PageContent) -> dict[str, int]:
    """Return the place of each method; the base model comes last if a table has it."""
    methods = list(content.methods)
    rows = list(content.rows)
    for table in content.tables:
        rows += table.rows
    if any(row.method == BASE_MODEL for row in rows):
        methods.append(BASE_MODEL)
    return {method: place for place, method in enumerate(methods)}


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
