"""The finding that a page opens with: a sentence on each score, and the methods that have a color at first."""

from __future__ import annotations

from collections.abc import Sequence

from harness.cells.no_signal import NO_SIGNAL
from harness.page.content import PageContent, ScoreTable
from harness.table.columns import format_estimate
from harness.table.compare import Comparison
from harness.table.frames import BASE_MODEL
from harness.terminal.units import plural

SIGNIFICANT = 0.05  # the chance, over all methods of a table, of any difference that is called significant by mistake
COLORS = 8  # of the palette; colors of further methods repeat


def finding_sentences(table: ScoreTable) -> list[str]:
    """Return a sentence on each cell that learned nothing, and one on each score.

    Of a score: how many methods differ from the baseline, and the largest differences.
    """
    sentences = [f"{flag}." for flag in untrained_flags(table)]
    for score, compared in compared_by_score(table).items():
        trained = [comparison for comparison in compared if comparison.method != BASE_MODEL]
        sentences.append(score_sentence(score, trained))
    return sentences


def untrained_flags(table: ScoreTable) -> list[str]:
    """Return the flags of the rows that say that a cell learned nothing."""
    flags: dict[str, None] = {}
    for row in table.rows:
        flags |= dict.fromkeys(flag for flag in row.flags if NO_SIGNAL in flag)
    return list(flags)


def compared_by_score(table: ScoreTable) -> dict[str, list[Comparison]]:
    """Return the comparisons that have a difference by score, the highest first; the base model has one, too."""
    by_score: dict[str, list[Comparison]] = {}
    for comparison in table.comparisons:
        of_score = by_score.setdefault(comparison.score, [])
        if comparison.method != comparison.baseline and comparison.difference is not None:
            of_score.append(comparison)
    for of_score in by_score.values():
        of_score.sort(key=difference_of, reverse=True)
    return by_score


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
    extremes = f"the highest difference is {named_difference(best)}, the lowest {named_difference(worst)}"
    tested = better = worse = 0
    for comparison in compared:
        tested += comparison.p_holm is not None
        if is_significant(comparison):
            better += difference_of(comparison) > 0
            worse += difference_of(comparison) < 0
    if not tested:
        return f"{score}: no difference of {len(compared)} methods from {baseline} has an interval; {extremes}."
    untested = len(compared) - tested
    if untested:
        extremes += f"; {untested} more without an interval"
    correction = f"(Holm's correction for {plural(tested, 'comparison')}, 5 %)"
    methods = plural(tested, "method")
    if not better and not worse:
        return f"{score}: none of {methods} differs significantly from {baseline} {correction}; {extremes}."
    verb = "is" if better < 2 else "are"
    better_text, worse_text = better or "none", worse or "none"
    counts = f"{better_text} of {methods} {verb} significantly better than {baseline}, {worse_text} worse"
    return f"{score}: {counts} {correction}; {extremes}."


def relation(comparison: Comparison) -> str:
    """Return how the only method of a table relates to the baseline, as the middle of a sentence."""
    if comparison.p_holm is None:
        return "has no interval of its difference from"
    if not is_significant(comparison):
        return "does not differ significantly from"
    return "is significantly better than" if difference_of(comparison) > 0 else "is significantly worse than"


def named_difference(comparison: Comparison) -> str:
    return f"{comparison.method}'s ({difference_text(comparison)})"


def difference_text(comparison: Comparison) -> str:
    return format_estimate(comparison.difference, "+")


def extreme_methods(table: ScoreTable) -> list[str]:
    """Return the methods with the highest and the lowest difference of the first score."""
    for compared in compared_by_score(table).values():
        trained = [comparison.method for comparison in compared if comparison.method != BASE_MODEL]
        return [trained[0], trained[-1]] if trained else []
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
