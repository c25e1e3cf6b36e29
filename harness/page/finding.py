"""The sentences of a page, and the methods that have a color at first.

The finding says what training with the baseline did to the base model, and the verdicts on the other methods; the
summary says what else bears on the table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from harness.base.units import plural
from harness.page.content import PageContent, ScoreTable, last_answers
from harness.page.figures import Figure
from harness.table.columns import MIXED, format_estimate, method_text, sign_mark
from harness.table.compare import Comparison
from harness.table.frames import BASE_MODEL
from harness.table.leaderboard import LeaderboardRow
from harness.table.render import remarks, untrained_flags
from harness.table.statistics import Estimate
from harness.table.verdict import LOSES, TRADES, WINS

COLORS = 8  # of the palette; colors of further methods repeat
LISTED = 12  # methods that a sentence names; the tables name all
PLURALS = {WINS: "win", TRADES: "trade", LOSES: "lose"}
TICKS = 4  # of an axis of the forest plot at most; more do not fit on a phone's width
MARGIN = 0.04  # of an axis on either side, so that the ends of intervals are seen

Axis = tuple[float, float]  # its ends
Compared = tuple[Comparison, Estimate]  # a comparison and its difference


# The finding


def findings_of(content: PageContent, pareto: Mapping[str, list[tuple[str, Figure]]]) -> list[dict[str, Any]]:
    """Return the finding of each table with its pictures."""
    findings = []
    for table in content.tables:
        title = table.title if len(content.tables) > 1 else ""
        sentences, forest = finding_sentences(table), forest_plot(table)
        findings.append({"title": title, "sentences": sentences, "forest": forest, "figures": pareto.get(title, [])})
    return findings


def finding_sentences(table: ScoreTable) -> list[str]:
    """Return the cells that learned nothing, what the baseline did to the base model, and the verdicts."""
    sentences = [f"{flag}." for flag in untrained_flags(table.rows)]
    by_method = {row.method: row for row in table.rows if row.avg_at_k is not None}
    base = by_method.get(BASE_MODEL)
    if base is not None and base.baseline in by_method:
        sentences.append(baseline_sentence(base, by_method[base.baseline]))
    return [*sentences, verdict_sentence(table)]


def baseline_sentence(base: LeaderboardRow, row: LeaderboardRow) -> str:
    """Say how both scores changed while the baseline was trained."""
    scores = {
        f"Pass@{row.k}": (base.pass_at_k[row.k], row.pass_at_k[row.k], base.delta_pass_at_k.get(row.k)),
        "Avg@K": (base.avg_at_k, row.avg_at_k, base.delta_to_baseline),
    }
    same_seeds = base.seeds_done == row.seeds_done
    changes = [change_text(score, *estimates, same_seeds=same_seeds) for score, estimates in scores.items()]
    return f"Training with {row.method}: {'; '.join(changes)}."


def change_text(
    score: str, before: Estimate | None, after: Estimate | None, difference: Estimate | None, *, same_seeds: bool
) -> str:
    """Say how a score changed; `difference`: of the base model from the method."""
    assert before is not None
    assert after is not None
    if difference is not None and not same_seeds:  # the base model of the method's seeds alone
        before = Estimate(after.mean + difference.mean)
    if after.mean == before.mean:
        return f"{score} stays at {after.mean:.3f}"
    verb = "falls" if after.mean < before.mean else "rises"
    text = f"{score} {verb} from {before.mean:.3f} to {after.mean:.3f}"
    if difference is None or difference.ends is None:
        return f"{text} (without an interval)"
    return text if sign_mark(difference) else f"{text} (not significant)"


def verdict_sentence(table: ScoreTable) -> str:
    """Name the methods of each verdict, the highest difference in the headline score first."""
    compared = compared_by_score(table)
    headline, of_headline = next(iter(compared.items())) if compared else ("", [])
    trained = [comparison for comparison, _ in of_headline if comparison.method != BASE_MODEL]
    if not trained:
        return "No method can be compared with the baseline yet."
    by_verdict: dict[str, list[Comparison]] = {WINS: [], TRADES: [], LOSES: [], "": []}
    for comparison in trained:
        by_verdict[comparison.verdict].append(comparison)
    parts = []
    for verdict, plural_verb in PLURALS.items():
        of_verdict = by_verdict[verdict]
        if of_verdict:
            names = enumeration([f"{one.method} ({difference_text(one)})" for one in of_verdict])
            parts.append(f"{names} {verdict if len(of_verdict) == 1 else plural_verb}")
    tested = sum(comparison.p_holm is not None for comparison in trained)
    if not tested:
        parts.append(f"no difference of {plural(len(trained), 'method')} has an interval, so there is no verdict")
    elif not by_verdict[WINS] and not by_verdict[TRADES]:
        parts.append(f"no method has a significant gain (Holm's correction for {plural(tested, 'method')}, 5 %)")
        parts.append(f"the highest difference is {trained[0].method}'s ({difference_text(trained[0])})")
    elif by_verdict[""]:
        parts.append(f"no verdict on {len(by_verdict[''])} of {plural(len(trained), 'method')}")
    return f"{headline} against {trained[0].baseline}: {'; '.join(parts)}."


def compared_by_score(table: ScoreTable) -> dict[str, list[Compared]]:
    """Return the comparisons that have a difference by score, the headline and the highest first."""
    by_score: dict[str, list[Compared]] = {}
    for comparison in table.comparisons:  # of Avg@K first, and then of the headline
        of_score = by_score.setdefault(comparison.score, [])
        if comparison.method != comparison.baseline and comparison.difference is not None:
            of_score.append((comparison, comparison.difference))
    for of_score in by_score.values():
        of_score.sort(key=lambda pair: pair[1].mean, reverse=True)  # of equal ones, the first of the table comes first
    return dict(reversed(by_score.items()))


def difference_text(comparison: Comparison) -> str:
    return format_estimate(comparison.difference, "+")


def colored_methods(content: PageContent, methods: Sequence[str], fronts: Sequence[Sequence[str]]) -> list[str]:
    """Return the methods that have a color before the reader chooses.

    These are all, if the palette has enough colors, or else the baseline, the base model and the front of each table.
    """
    if len(methods) <= COLORS:
        return list(methods)
    colored = dict.fromkeys([content.baseline, BASE_MODEL, *chain.from_iterable(fronts)])
    return [method for method in colored if method in methods]


# The summary


def summary(content: PageContent) -> list[tuple[str, list[str]]]:
    """Return the titles of the summary, each with its sentences; the first, on everything, has no title."""
    parts = [("", general_sentences(content))]
    parts += [(table.title, table_sentences(table, content.baseline)) for table in content.tables]
    return [(title, sentences) for title, sentences in parts if sentences]


def general_sentences(content: PageContent) -> list[str]:
    states = Counter(content.cells["state"])
    done = states.pop("done", 0)
    counts = [f"{done} of {len(content.cells)} cells are done"]
    counts += [f"{number} {state}" for state, number in states.items()]
    sentences = [f"{', '.join(counts)}."]
    lacking = [row for row in content.rows if row.seeds_done < row.seeds_expected]
    unfinished = dict.fromkeys(row.method for row in lacking if row.method != BASE_MODEL)
    if unfinished:
        names = enumeration(list(unfinished))
        sentences.append(f"Not every expected seed is done for {names}; differences use the seeds that both have.")
    seeds = content.cells["seed"].nunique()
    if seeds == 1:
        sentences.append(
            "There is one seed. It does not show how much seeds differ, so intervals and significance are unknown."
        )
    if seeds == 2:
        sentences.append("There are two seeds, which tell little about how much seeds differ: intervals are wide.")
    return [*sentences, *content.notes]


def table_sentences(table: ScoreTable, baseline: str) -> list[str]:
    others = [row for row in table.rows if row.method not in (baseline, BASE_MODEL)]
    if not any(row.seeds_done for row in table.rows):
        return ["No cell is done."]
    sentences = []
    if len(table.answers):
        of_first_cell = table.answers[table.answers["cell"] == table.answers["cell"].iloc[0]]
        last = last_answers(of_first_cell)
        sentences.append(f"Each cell answers {len(last)} problems, {last['samples'].iloc[0]} times each.")
    mixed = dict.fromkeys(sentence for row in table.rows for sentence in row.mixed)
    flags = dict.fromkeys(flag for row in table.rows for flag in remarks(row))  # the finding has the others
    sentences += [f"{MIXED} {sentence[0].upper()}{sentence[1:]}." for sentence in mixed]
    if not others:
        return [*sentences, f"There is only the baseline, {baseline}: nothing is compared."]
    return sentences + [f"Remark: {flag}." for flag in flags]


def enumeration(words: Sequence[str]) -> str:
    """Return words as in a sentence: `a, b and c`; of many only the first, and how many more there are."""
    if len(words) > LISTED:
        words = [*words[:LISTED], f"{len(words) - LISTED} more"]
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


# The forest plot. It is a table of HTML whose cells hold a line and a point at places in percent, so that it has any
# width, is sorted and searched like other tables, and needs no script.


def forest_plot(table: ScoreTable) -> dict[str, Any] | None:
    """Return a line for each method that has a difference, sorted by the headline; None if no method has one."""
    compared = compared_by_score(table)
    if not any(compared.values()):
        return None
    lines: dict[str, dict[str, Any]] = {}  # by method, in the order of the first score
    scores = []
    for score, of_score in compared.items():
        axis = forest_axis([difference for _, difference in of_score])
        ticks = [{"text": f"{tick:g}", "place": place_on(axis, tick)} for tick in nice_ticks(*axis, TICKS)]
        scores.append({"name": score, "ticks": ticks, "zero": place_on(axis, 0.0)})
        for comparison, difference in of_score:
            method, verdict = comparison.method, comparison.verdict
            name = method_text(method, mixed=(), trainer=comparison.trainer)
            line = lines.setdefault(method, {"method": method, "name": name, "verdict": verdict, "cells": []})
            line["cells"].append(forest_cell(comparison, difference, axis))
    return {"baseline": table.comparisons[0].baseline, "scores": scores, "lines": list(lines.values())}


def forest_axis(differences: Sequence[Estimate]) -> Axis:
    """Return the ends of the axis of a score; it contains 0 and every interval."""
    ends = [0.0]
    for difference in differences:
        ends += difference.ends or (difference.mean,)
    low, high = min(ends), max(ends)
    margin = MARGIN * (high - low)
    if margin == 0:  # all differences and ends of intervals are 0, but an axis needs a length
        margin = 1.0
    return low - margin, high + margin


def forest_cell(comparison: Comparison, difference: Estimate, axis: Axis) -> dict[str, Any]:
    """Return a difference with its places on the axis."""
    low, high = difference.ends or (difference.mean, difference.mean)
    return {
        "value": difference.mean,
        "text": difference_text(comparison),
        "significant": comparison.significance != 0,
        "low": place_on(axis, low),
        "mean": place_on(axis, difference.mean),
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
