"""The figures of the page as plain data: what is drawn, what it means, and the same numbers as a table.

A series names a method; `style` is its place among the methods, from which the page takes colour, dashes and marker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.page.story import Story, Told
from harness.statistics import Estimate
from harness.table.leaderboard import BASE_MODEL
from harness.terminal.layout import visible

Series = dict[str, Any]  # name, style, and lists of numbers
Styles = Mapping[str, int]


@dataclass(frozen=True)
class Figure:
    title: str
    note: str  # what is drawn, and what bands and bars are
    kind: str  # lines | points | rates | dots | bars
    x: str
    y: str
    series: list[Series]
    header: list[str]
    lines: list[list[str]]
    small: bool = False
    options: dict[str, Any] = field(
        default_factory=dict
    )  # log_x, log_y: logarithmic; ticks: of x; names: x holds no numbers; cut: y stays in 0 to 1


def finite(value: float | None) -> float | None:
    """Returns a number that JSON can hold, short enough for a page; None where there is none."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def limits(estimates: Iterable[Estimate]) -> dict[str, list[float | None]]:
    every = list(estimates)
    return {
        "low": [finite(each.low) for each in every],
        "high": [finite(each.high) for each in every],
    }


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
    """Draws the mean over seeds, and their range; a step that a seed lacks, or has no number for, is without it."""
    series, lines = [], []
    for method, of_seeds in curves.items():
        values = {
            step: here
            for step in sorted({step for curve in of_seeds for step in curve})
            if (here := [curve[step] for curve in of_seeds if step in curve and math.isfinite(curve[step])])
        }
        if not values:
            continue
        series.append(
            {
                "name": method,
                "style": styles[method],
                "x": list(values),
                "y": [finite(float(np.mean(here))) for here in values.values()],
                "low": [finite(min(here)) for here in values.values()],
                "high": [finite(max(here)) for here in values.values()],
            }
        )
        first, last = min(values), max(values)
        means = [float(np.mean(here)) for here in values.values()]
        lines.append(
            [
                method,
                *(f"{number(float(np.mean(values[s])))} (step {s})" for s in (first, last)),
                f"{number(min(values[last]))} to {number(max(values[last]))}",
                number(min(means)),
                number(max(means)),
            ]
        )
    header = ["method", "first mean", "last mean", "seeds at the last step", "lowest mean", "highest mean"]
    return Figure(title, note, "lines", "step", y, series, header, lines, small, options)


def by_method(cells: Sequence[Told], styles: Styles) -> dict[str, list[Told]]:
    """Returns the cells by method, in the order of the methods."""
    groups: dict[str, list[Told]] = {}
    for cell in sorted(cells, key=lambda cell: (styles[cell.method], cell.seed)):
        groups.setdefault(cell.method, []).append(cell)
    return groups


def number(value: float) -> str:
    return f"{value:.4g}"


def styles_of(story: Story) -> dict[str, int]:
    """Return the place of each method, and of the base model behind them if the story has it."""
    rows = [*story.rows, *(row for board in story.boards for row in board.rows)]
    drawn = [BASE_MODEL] if any(row.method == BASE_MODEL for row in rows) else []
    return {method: place for place, method in enumerate([*story.methods, *drawn])}


def payload(figure: Figure) -> dict[str, Any]:
    """Return the parts of a figure that the page's script draws, with control characters written out."""
    return {key: drawable(getattr(figure, key)) for key in ("kind", "x", "y", "series", "small", "options")}


def drawable(value: Any) -> Any:
    """Return a value of JSON whose texts, names included, steer nothing where they are shown."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {drawable(key): drawable(child) for key, child in value.items()}
    return [drawable(child) for child in value] if isinstance(value, list | tuple) else value
