"""The forest plot of a table: each method's paired difference from the baseline with its interval, the highest first.

It is a table of HTML whose cells hold a line and a point at places in percent, so that it has any width, is sorted and
searched like other tables, and needs no script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.page.content import ScoreTable
from harness.page.finding import compared_by_score, difference_text
from harness.statistics import Estimate
from harness.table.columns import method_text
from harness.table.compare import Comparison

TICKS = 4  # at most; more do not fit on an axis of a phone's width
MARGIN = 0.04  # of an axis on either side, so that the ends of intervals are seen

Axis = tuple[float, float]  # its ends


def forest_plot(table: ScoreTable) -> dict[str, Any] | None:
    """Return a line for each method that has a difference, sorted by the headline; None if no method has one."""
    compared = compared_by_score(table)
    if not any(compared.values()):
        return None
    cells: dict[str, list[dict[str, Any]]] = {}  # by method, in the order of the first score
    names, verdicts = {}, {}
    scores = []
    for score, of_score in compared.items():
        axis = forest_axis(of_score)
        scores.append({"name": score, "ticks": axis_ticks(axis), "zero": place_on(axis, 0.0)})
        for comparison in of_score:
            cells.setdefault(comparison.method, []).append(forest_cell(comparison, axis))
            names[comparison.method] = method_text(comparison.method, mixed=(), trainer=comparison.trainer)
            verdicts[comparison.method] = comparison.verdict
    lines = []
    for method, of_method in cells.items():
        lines.append({"method": method, "name": names[method], "verdict": verdicts[method], "cells": of_method})
    return {"baseline": table.comparisons[0].baseline, "scores": scores, "lines": lines}


def axis_ticks(axis: Axis) -> list[dict[str, Any]]:
    """Return the ticks of an axis with their places."""
    return [{"text": f"{tick:g}", "place": place_on(axis, tick)} for tick in nice_ticks(*axis, TICKS)]


def forest_axis(compared: Sequence[Comparison]) -> Axis:
    """Return the ends of the axis of a score; it contains 0 and every interval."""
    ends = [0.0]
    for comparison in compared:
        assert comparison.difference is not None
        ends += interval_ends(comparison.difference)
    low, high = min(ends), max(ends)
    margin = MARGIN * (high - low)
    if margin == 0:  # all differences and ends of intervals are 0, but an axis needs a length
        margin = 1.0
    return low - margin, high + margin


def interval_ends(estimate: Estimate) -> tuple[float, float]:
    """Return the interval's ends, or the mean twice if there is none."""
    if estimate.low is None or estimate.high is None:
        return estimate.mean, estimate.mean
    return estimate.low, estimate.high


def forest_cell(comparison: Comparison, axis: Axis) -> dict[str, Any]:
    """Return a difference with its places on the axis."""
    assert comparison.difference is not None
    low, high = interval_ends(comparison.difference)
    return {
        "value": comparison.difference.mean,
        "text": difference_text(comparison),
        "significant": comparison.significance != 0,
        "low": place_on(axis, low),
        "mean": place_on(axis, comparison.difference.mean),
        "high": place_on(axis, high),
    }


def place_on(axis: Axis, value: float) -> float:
    """Return the place of a value on an axis, in percent of its length."""
    low, high = axis
    return round(100 * (value - low) / (high - low), 2)


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Return the round numbers between two ends: at most `most`, the multiples of a round step."""
    # The largest power of ten that may give too many ticks; ten times it never does.
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    # No step is more than twice the one before: with 5 after 2 an axis could be left with one tick.
    for step in (power, 2 * power, 2.5 * power, 5 * power, 10 * power):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most:  # there is one tick more than that
            break
    return [round(multiple * step, 12) for multiple in range(first, last + 1)]  # 3 * 0.1 is not 0.3
