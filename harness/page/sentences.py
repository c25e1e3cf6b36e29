"""The table in sentences, which claim no more than its intervals support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from pandas import DataFrame

from harness.cells.no_signal import NO_SIGNAL
from harness.page.content import PageContent, ScoreTable, last_answers
from harness.statistics import Estimate
from harness.table.columns import BETTER, MIXED, WORSE, format_estimate, sign_mark
from harness.table.frames import BASE_MODEL
from harness.table.leaderboard import LeaderboardRow

LISTED = 12  # methods that a sentence names; the tables name all


def summary(content: PageContent) -> list[tuple[str, list[str]]]:
    """Return the titles of the summary, each with its sentences; the first, on everything, has no title."""
    parts = [("", general_sentences(content))]
    for table in content.tables:
        parts.append((table.title, table_sentences(table, content.cells, content.baseline)))
    return [(title, sentences) for title, sentences in parts if sentences]


def general_sentences(content: PageContent) -> list[str]:
    states = Counter(content.cells["state"])
    done = states.pop("done", 0)
    counts = [f"{done} of {len(content.cells)} cells are done"]
    for state, number in states.items():
        counts.append(f"{number} {state}")
    sentences = [f"{', '.join(counts)}."]
    unfinished = []
    for row in content.rows:
        is_trained = row.method != BASE_MODEL
        if is_trained and row.seeds_done < row.seeds_expected and row.method not in unfinished:
            unfinished.append(row.method)
    if unfinished:
        names = enumeration(unfinished)
        sentences.append(f"Not every expected seed is done for {names}; differences use the seeds that both have.")
    seeds = content.cells["seed"].nunique()
    if seeds == 1:
        sentences.append(
            "There is one seed. It does not show how much seeds differ, so intervals and significance are unknown."
        )
    if seeds == 2:
        sentences.append("There are two seeds, which tell little about how much seeds differ: intervals are wide.")
    return [*sentences, *content.notes]


def table_sentences(table: ScoreTable, cells: DataFrame, baseline: str) -> list[str]:
    others = [row for row in table.rows if row.method not in (baseline, BASE_MODEL)]
    if not any(row.seeds_done for row in table.rows):
        return ["No cell is done."]
    sentences = []
    if len(table.answers):
        of_first_cell = table.answers[table.answers["cell"] == table.answers["cell"].iloc[0]]
        last = last_answers(of_first_cell)
        sentences.append(f"Each cell answers {len(last)} problems, {last['samples'].iloc[0]} times each.")
    mixed: dict[str, None] = {}
    flags: dict[str, None] = {}
    for row in table.rows:
        mixed |= dict.fromkeys(row.mixed)
        flags |= dict.fromkeys(flag for flag in row.flags if NO_SIGNAL not in flag)  # which the finding says
        if row.method == BASE_MODEL:
            avg, passed = format_estimate(row.avg_at_k), format_estimate(row.pass_at_k.get(row.k))
            sentences.append(f"The base model, before any training: Avg@K {avg}, Pass@{table.k} {passed}.")
    sentences += [f"{MIXED} {sentence[0].upper()}{sentence[1:]}." for sentence in mixed]
    if not others:
        return [*sentences, f"There is only the baseline, {baseline}: nothing is compared."]
    sentences += difference_sentences(table, others, baseline)
    sentences += cost_sentences(table, cells, baseline)
    return sentences + [f"Of the problems: {flag}." for flag in flags]


def difference_sentences(table: ScoreTable, rows: Sequence[LeaderboardRow], baseline: str) -> list[str]:
    """Return a sentence on the differences of each score, and one on how many comparisons these are."""
    scores: list[tuple[str, Callable[[LeaderboardRow], Estimate | None]]] = [
        ("Avg@K", lambda row: row.delta_to_baseline),
        (f"Pass@{table.k}", lambda row: row.delta_pass_at_k.get(row.k)),
    ]
    sentences, comparisons = [], 0
    for name, difference_of in scores:
        differences = {}
        for row in rows:
            difference = difference_of(row)
            differences[row.method] = difference
            comparisons += has_interval(difference)
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

    def place(item: tuple[str, Estimate | None]) -> float:
        _, difference = item
        return 0.0 if difference is None else -abs(difference.mean)

    # The largest first, since a sentence names only the first of many.
    for method, difference in sorted(differences.items(), key=place):
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


def cost_sentences(table: ScoreTable, cells: DataFrame, baseline: str) -> list[str]:
    """Say how long the methods took in comparison, and how much of the entropy is left."""
    sentences = []
    ratios = time_ratios(table, cells, baseline)
    if ratios:
        ascending = sorted(ratios.items(), key=lambda pair: pair[1])
        listed = enumeration([f"{method} {ratio:.2f}" for method, ratio in ascending])
        sentences.append(
            f"Time of a cell, as a multiple of {baseline}'s with the same seed: {listed}. Cells may have shared a "
            "machine with others, so small differences mean nothing."
        )
    kept = {}
    for row in table.rows:
        if row.method != BASE_MODEL and row.entropy_kept:
            kept[row.method] = row.entropy_kept.mean
    if kept:
        descending = sorted(kept.items(), key=lambda pair: -pair[1])
        listed = enumeration([f"{method} {share:.0%}" for method, share in descending])
        sentences.append(f"Entropy at the last training step, as a share of that at the first: {listed}.")
    return sentences


def time_ratios(table: ScoreTable, cells: DataFrame, baseline: str) -> dict[str, float]:
    """Return the time of each method's cells as a multiple of the baseline's, mean over the seeds that both have."""
    timed = cells[cells["cell"].isin(table.answers["cell"]) & (cells["seconds"] > 0)]
    seconds = timed.pivot(index="seed", columns="method", values="seconds")
    ratios: dict[str, float] = {}
    if baseline in seconds:
        for row in table.rows:
            if row.method in seconds and row.method != baseline:
                of_pairs = (seconds[row.method] / seconds[baseline]).dropna()
                if len(of_pairs):
                    ratios[row.method] = float(of_pairs.mean())
    return ratios


def enumeration(words: Sequence[str]) -> str:
    """Return words as in a sentence: `a, b and c`; of many only the first, and how many more there are."""
    if len(words) > LISTED:
        words = [*words[:LISTED], f"{len(words) - LISTED} more"]
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
