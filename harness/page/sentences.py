"""The table in sentences, which claim no more than its intervals support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from harness.page.content import PageContent, ScoreTable
from harness.statistics import Estimate
from harness.table.columns import BETTER, MIXED, WORSE, format_estimate, sign_mark
from harness.table.frames import BASE_MODEL
from harness.table.leaderboard import LeaderboardRow


def summary(content: PageContent) -> list[tuple[str, list[str]]]:
    """Return the titles of the summary, each with its sentences; the first, on everything, has no title."""
    parts = [("", general_sentences(content))]
    parts += [(table.title, table_sentences(table, content.baseline)) for table in content.tables]
    return [(title, sentences) for title, sentences in parts if sentences]


def general_sentences(content: PageContent) -> list[str]:
    states = Counter(cell.state for cell in content.cells)
    done = states.pop("done", 0)
    others = "".join(f", {number} {state}" for state, number in states.items())
    sentences = [f"{done} of {len(content.cells)} cells are done{others}."]
    trained = [row for row in content.rows if row.method != BASE_MODEL]
    unfinished = dict.fromkeys(row.method for row in trained if row.seeds_done < row.seeds_expected)
    if unfinished:
        names = enumeration([*unfinished])
        sentences.append(f"Not every expected seed is done for {names}; differences use the seeds that both have.")
    seeds = len({cell.seed for cell in content.cells})
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
    if table.cells:
        problems, samples = table.cells[0].last(table.task).right_JN.shape
        sentences.append(f"Each cell answers {problems} problems, {samples} times each.")
    for row in table.rows:
        if row.method == BASE_MODEL:
            avg, passed = format_estimate(row.avg_at_k), format_estimate(row.pass_at_k.get(row.k))
            sentences.append(f"The base model, before any training: Avg@K {avg}, Pass@{table.k} {passed}.")
    mixed = dict.fromkeys(sentence for row in table.rows for sentence in row.mixed)
    sentences += [f"{MIXED} {sentence[0].upper()}{sentence[1:]}." for sentence in mixed]
    if not others:
        return [*sentences, f"There is only the baseline, {baseline}: nothing is compared."]
    sentences += difference_sentences(table, others, baseline)
    sentences += cost_sentences(table, baseline)
    flags = dict.fromkeys(flag for row in table.rows for flag in row.flags)
    return sentences + [f"Of the problems: {flag}." for flag in flags]


def difference_sentences(table: ScoreTable, rows: Sequence[LeaderboardRow], baseline: str) -> list[str]:
    """Return a sentence on the differences of each score, and one on how many comparisons these are."""
    scores: list[tuple[str, Callable[[LeaderboardRow], Estimate | None]]] = [
        ("Avg@K", lambda row: row.delta_to_baseline),
        (f"Pass@{table.k}", lambda row: row.delta_pass_at_k.get(row.k)),
    ]
    sentences, comparisons = [], 0
    for name, difference_of in scores:
        differences = {row.method: difference_of(row) for row in rows}
        comparisons += sum(has_interval(difference) for difference in differences.values())
        sentences.append(difference_sentence(name, differences, baseline))
    if comparisons > 1:
        sentences.append(
            f"Both scores together are {comparisons} comparisons at 95 %: if no method differed from {baseline}, up to "
            f"about {comparisons / 20:.1f} of their intervals would still exclude 0, by chance."
        )
    return sentences


def has_interval(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.low is not None


def difference_sentence(name: str, differences: dict[str, Estimate | None], baseline: str) -> str:
    """Say of one score which methods are better and worse than the baseline, and which are neither."""
    by_mark: dict[str, list[str]] = {BETTER: [], WORSE: [], "": []}
    without = []
    for method, difference in differences.items():
        if difference is None or not has_interval(difference):
            without.append(method)
            continue
        mark = sign_mark(difference)
        by_mark[mark].append(f"{method} ({format_estimate(difference, '+')})" if mark else method)
    parts = []
    for mark, word in ((BETTER, "better"), (WORSE, "worse")):
        if by_mark[mark]:
            parts.append(f"{word} than {baseline}, by a 95 % interval that excludes 0: {enumeration(by_mark[mark])}")
    if by_mark[""]:
        ties = enumeration(by_mark[""])
        parts.append(f"no significant difference from {baseline}, since its 95 % interval contains 0: {ties}")
    if without:
        parts.append(f"no interval of the difference: {enumeration(without)}")
    return f"{name}: {'; '.join(parts)}."


def cost_sentences(table: ScoreTable, baseline: str) -> list[str]:
    """Say how long the methods took in comparison, and how much of the entropy is left."""
    sentences = []
    ratios = time_ratios(table, baseline)
    if ratios:
        ascending = sorted(ratios.items(), key=lambda pair: pair[1])
        listed = enumeration([f"{method} {ratio:.2f}" for method, ratio in ascending])
        sentences.append(
            f"Time of a cell, as a multiple of {baseline}'s with the same seed: {listed}. Cells may have shared a "
            "machine with others, so small differences mean nothing."
        )
    kept = {row.method: row.entropy_kept.mean for row in table.rows if row.method != BASE_MODEL and row.entropy_kept}
    if kept:
        descending = sorted(kept.items(), key=lambda pair: -pair[1])
        listed = enumeration([f"{method} {share:.0%}" for method, share in descending])
        sentences.append(f"Entropy at the last training step, as a share of that at the first: {listed}.")
    return sentences


def time_ratios(table: ScoreTable, baseline: str) -> dict[str, float]:
    """Return the time of each method's cells as a multiple of the baseline's, mean over the seeds that both have."""
    seconds: dict[str, dict[int, float]] = {row.method: {} for row in table.rows if row.method != BASE_MODEL}
    for cell in table.cells:
        if cell.seconds > 0:
            seconds[cell.method][cell.seed] = cell.seconds
    ratios = {}
    for method, of_seeds in seconds.items():
        of_pairs = [of_seeds[seed] / seconds[baseline][seed] for seed in of_seeds if seed in seconds[baseline]]
        if of_pairs and method != baseline:
            ratios[method] = float(np.mean(of_pairs))
    return ratios


def enumeration(words: Sequence[str]) -> str:
    """Return words as in a sentence: `a, b and c`."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
