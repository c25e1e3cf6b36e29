"""The figures of the page as plain data: the series, their meaning, and the same numbers as a table.

A series names a method; `style` is its place among the methods, which determines color, dashes and marker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.page.content import CellRecord, PageContent
from harness.statistics import Estimate
from harness.table.frames import BASE_MODEL
from harness.terminal.layout import visible

Series = dict[str, Any]  # name, style, and lists of numbers
Styles = Mapping[str, int]


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
    curves: Mapping[str, Sequence[Mapping[int, float]]],
    styles: Styles,
    *,
    small: bool = False,
    **options: Any,
) -> Figure:
    """Return the figure of a metric: the mean over the seeds that have a number at a step, and their range."""
    series, lines = [], []
    for method, of_seeds in curves.items():
        values = finite_values_by_step(of_seeds)
        if not values:
            continue
        means = {step: float(np.mean(of_step)) for step, of_step in values.items()}
        points = [page_number(mean) for mean in means.values()]
        low = [page_number(min(of_step)) for of_step in values.values()]
        high = [page_number(max(of_step)) for of_step in values.values()]
        steps = list(values)
        series.append({"name": method, "style": styles[method], "x": steps, "y": points, "low": low, "high": high})
        first, last = min(values), max(values)
        lines.append(
            [
                method,
                f"{short_number(means[first])} (step {first})",
                f"{short_number(means[last])} (step {last})",
                f"{short_number(min(values[last]))} to {short_number(max(values[last]))}",
                short_number(min(means.values())),
                short_number(max(means.values())),
            ]
        )
    header = ["method", "first mean", "last mean", "seeds at the last step", "lowest mean", "highest mean"]
    return Figure(title, note, "lines", "step", y, series, header, lines, small, options)


def finite_values_by_step(of_seeds: Sequence[Mapping[int, float]]) -> dict[int, list[float]]:
    """Return the finite values of the seeds, by step."""
    values: dict[int, list[float]] = {}
    for step in sorted({step for curve in of_seeds for step in curve}):
        of_step = [curve[step] for curve in of_seeds if step in curve and math.isfinite(curve[step])]
        if of_step:
            values[step] = of_step
    return values


def by_method(cells: Sequence[CellRecord], styles: Styles) -> dict[str, list[CellRecord]]:
    """Return the cells by method, in the order of the methods."""
    groups: dict[str, list[CellRecord]] = {}
    for cell in sorted(cells, key=lambda cell: (styles[cell.method], cell.seed)):
        groups.setdefault(cell.method, []).append(cell)
    return groups


def short_number(value: float) -> str:
    return f"{value:.4g}"


def styles_of(content: PageContent) -> dict[str, int]:
    """Return the place of each method; the base model comes last if a table has it."""
    rows = [*content.rows, *(row for table in content.tables for row in table.rows)]
    drawn = [BASE_MODEL] if any(row.method == BASE_MODEL for row in rows) else []
    return {method: place for place, method in enumerate([*content.methods, *drawn])}


def payload(figure: Figure) -> dict[str, Any]:
    """Return the parts of a figure that the page's script draws, with control characters written out."""
    return {key: drawable(getattr(figure, key)) for key in ("kind", "x", "y", "series", "small", "options")}


def drawable(value: Any) -> Any:
    """Return a value of JSON with the control characters of its texts written out, names included."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {drawable(key): drawable(child) for key, child in value.items()}
    return [drawable(child) for child in value] if isinstance(value, list | tuple) else value
