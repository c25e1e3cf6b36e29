"""The finding that a page opens with: a sentence on each score, and the forest plot of the paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.page.content import PageContent, ScoreTable
from harness.statistics import Estimate
from harness.table.columns import format_estimate
from harness.table.compare import Comparison, format_p
from harness.table.frames import BASE_MODEL

SIGNIFICANT = 0.05  # the chance, over all methods of a table, of any difference that is called significant by mistake
COLORS = 8  # of the palette: as many methods can be told apart by color alone
TICKS = 4  # about so many fit on an axis of a phone's width
MARGIN = 0.04  # of an axis on either side, so that the ends of intervals are seen


def finding_sentences(table: ScoreTable) -> list[str]:
    """Return a sentence on each score: how many methods differ from the baseline, and the largest differences."""
    return [score_sentence(score, compared) for score, compared in compared_methods(table).items()]


def compared_methods(table: ScoreTable) -> dict[str, list[Comparison]]:
    """Return the comparisons of trained methods with the baseline by score, the highest difference first."""
    by_score: dict[str, list[Comparison]] = {}
    for comparison in table.comparisons:
        of_score = by_score.setdefault(comparison.score, [])
        is_trained = comparison.method not in (comparison.baseline, BASE_MODEL)
        if is_trained and comparison.difference is not None:
            of_score.append(comparison)
    return {score: sorted(of_score, key=difference_of, reverse=True) for score, of_score in by_score.items()}


def difference_of(comparison: Comparison) -> float:
    assert comparison.difference is not None
    return comparison.difference.mean


def is_significant(comparison: Comparison) -> bool:
    return comparison.p_holm is not None and comparison.p_holm < SIGNIFICANT


def score_sentence(score: str, compared: Sequence[Comparison]) -> str:
    """Say how the methods differ from the baseline in a score; they are sorted by their difference."""
    if not compared:
        return f"{score}: no method can be compared with the baseline yet."
    best, worst, baseline = compared[0], compared[-1], compared[0].baseline
    if len(compared) == 1:
        return f"{score}: {best.method} {relation(best)} {baseline} ({difference_text(best)})."
    tested = [comparison for comparison in compared if comparison.p_holm is not None]
    extremes = f"the highest difference is {named_difference(best)}, the lowest {named_difference(worst)}"
    if not tested:
        return (
            f"{score}: no significance is known for any of {len(compared)} methods; {extremes}. One seed gives no "
            "interval."
        )
    better = [comparison for comparison in tested if is_significant(comparison) and difference_of(comparison) > 0]
    worse = [comparison for comparison in tested if is_significant(comparison) and difference_of(comparison) < 0]
    untested = len(compared) - len(tested)
    without = f" {untested} more {'has' if untested == 1 else 'have'} no interval." if untested else ""
    correction = f"(Holm's correction for {len(tested)} comparisons, 5 %)"
    if not better and not worse:
        none = f"none of {len(tested)} methods differs significantly from {baseline}"
        return f"{score}: {none} {correction}; {extremes}.{without}"
    verb = "is" if len(better) < 2 else "are"
    counts = f"{len(better) or 'none'} of {len(tested)} methods {verb} significantly better than {baseline}"
    return f"{score}: {counts}, {len(worse) or 'none'} worse {correction}; {extremes}.{without}"


def relation(comparison: Comparison) -> str:
    """Return how the only method of a table relates to the baseline, as the middle of a sentence."""
    if comparison.p_holm is None:
        return "cannot be told from"
    if not is_significant(comparison):
        return "does not differ significantly from"
    return "is significantly better than" if difference_of(comparison) > 0 else "is significantly worse than"


def named_difference(comparison: Comparison) -> str:
    return f"{comparison.method}'s ({difference_text(comparison)})"


def difference_text(comparison: Comparison) -> str:
    return format_estimate(comparison.difference, "+")


def extreme_methods(table: ScoreTable) -> list[str]:
    """Return the methods with the highest and the lowest difference of the first score."""
    for compared in compared_methods(table).values():
        return [comparison.method for comparison in (*compared[:1], *compared[1:][-1:])]
    return []


def colored_methods(content: PageContent, methods: Sequence[str]) -> list[str]:
    """Return the methods that have a color before the reader chooses.

    These are all, if the palette has enough colors, or else the best and the worst of each table, the baseline and the
    base model.
    """
    if len(methods) <= COLORS:
        return list(methods)
    colored: dict[str, None] = {}
    for table in content.tables:
        colored |= dict.fromkeys(extreme_methods(table))
    colored |= dict.fromkeys([content.baseline, BASE_MODEL])
    return [method for method in colored if method in methods]


# The forest plot


def forest(table: ScoreTable) -> dict[str, Any] | None:
    """Return the forest plot: a line for each method with its differences, in percent of the axis of each score.

    Methods without a difference come last; None if no method has one.
    """
    by_score: dict[str, dict[str, Comparison]] = {}
    for comparison in table.comparisons:
        if comparison.method != comparison.baseline and comparison.difference is not None:
            by_score.setdefault(comparison.score, {})[comparison.method] = comparison
    if not by_score:
        return None
    axes = {score: forest_axis([*of_score.values()]) for score, of_score in by_score.items()}
    first = next(iter(by_score.values()))
    methods = sorted(first, key=lambda method: difference_of(first[method]), reverse=True)
    lines = []
    for method in methods:
        cells = []
        for score, of_score in by_score.items():
            cells.append(forest_cell(of_score[method], axes[score]))
        lines.append({"method": method, "cells": cells})
    scores = []
    for score, axis in axes.items():
        low, high = axis
        ticks = [{"text": f"{tick:g}", "place": place_on(axis, tick)} for tick in nice_ticks(low, high, TICKS)]
        scores.append({"name": score, "ticks": ticks, "zero": place_on(axis, 0.0)})
    return {"baseline": table.rows[0].baseline, "scores": scores, "lines": lines}


def forest_axis(compared: Sequence[Comparison]) -> tuple[float, float]:
    """Return the ends of the axis of a score; it contains 0 and every interval."""
    ends = [0.0]
    for comparison in compared:
        assert comparison.difference is not None
        ends += interval_ends(comparison.difference)
    low, high = min(ends), max(ends)
    margin = MARGIN * (high - low) or 1.0
    return low - margin, high + margin


def interval_ends(estimate: Estimate) -> tuple[float, float]:
    """Return the interval's ends, or the mean twice if there is none."""
    if estimate.low is None or estimate.high is None:
        return estimate.mean, estimate.mean
    return estimate.low, estimate.high


def forest_cell(comparison: Comparison, axis: tuple[float, float]) -> dict[str, Any]:
    """Return a difference with its places on the axis."""
    assert comparison.difference is not None
    low, high = interval_ends(comparison.difference)
    return {
        "value": comparison.difference.mean,
        "text": difference_text(comparison),
        "p": format_p(comparison.p_holm),
        "significant": is_significant(comparison),
        "low": place_on(axis, low),
        "mean": place_on(axis, comparison.difference.mean),
        "high": place_on(axis, high),
    }


def place_on(axis: tuple[float, float], value: float) -> float:
    """Return the place of a value on an axis, in percent of its length."""
    low, high = axis
    return round(100 * (value - low) / (high - low), 2)


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Return the round numbers between two ends: at most `most`, the multiples of a round step."""
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    # No step is more than twice the one before: with 5 after 2 an axis could be left with one tick.
    for step in (power, 2 * power, 2.5 * power, 5 * power, 10 * power):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most:
            break
    return [round(multiple * step, 12) for multiple in range(first, last + 1)]  # 3 * 0.1 is not 0.3
