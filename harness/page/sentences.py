"""Puts the table into sentences, which never say more than it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from harness.page.story import Board, Story
from harness.statistics import Estimate
from harness.table.columns import BETTER, MIXED, WORSE, mark, shown
from harness.table.leaderboard import BASE_MODEL, Row


def summary(story: Story) -> list[tuple[str, list[str]]]:
    """Returns the summary: titles (empty for what concerns everything), each with its sentences."""
    parts = [("", general(story))]
    parts += [(board.title, of_board(board, story.baseline)) for board in story.boards]
    return [(title, said) for title, said in parts if said]


def general(story: Story) -> list[str]:
    states = Counter(cell.state for cell in story.cells)
    said = [f"{states.pop('done', 0)} of {len(story.cells)} cells are done{''.join(also(states))}."]
    trained = [row for row in story.rows if row.method != BASE_MODEL]
    if unfinished := [row for row in trained if row.seeds_done < row.seeds_expected]:
        names = dict.fromkeys(row.method for row in unfinished)
        said.append(f"Not every expected seed is done for {listed(names)}; differences use the seeds that both have.")
    seeds = len({cell.seed for cell in story.cells})
    if seeds == 1:
        said.append(
            "There is one seed. Nobody can tell from it how much seeds differ, so there are no intervals, "
            "and nothing here is settled."
        )
    if seeds == 2:
        said.append("There are two seeds, which tell little about how much seeds differ: intervals are wide.")
    return [*said, *story.notes]


def also(states: Counter[str]) -> list[str]:
    return [f", {number} {state}" for state, number in states.items()]


def of_board(board: Board, baseline: str) -> list[str]:
    others = [row for row in board.rows if row.method not in (baseline, BASE_MODEL)]
    if not any(row.seeds_done for row in board.rows):
        return ["No cell is done."]
    said = []
    if board.cells:
        problems, samples = board.cells[0].last(board.task).right_JN.shape
        said.append(f"Each cell answers {problems} problems, {samples} times each.")
    said += [
        f"The base model, before any training: Avg@K {shown(row.avg_at_k)}, "
        f"Pass@{board.k} {shown(row.pass_at_k.get(row.k))}."
        for row in board.rows
        if row.method == BASE_MODEL
    ]
    said += [f"{MIXED} {why[0].upper()}{why[1:]}." for why in dict.fromkeys(w for row in board.rows for w in row.mixed)]
    if not others:
        return [*said, f"There is only the baseline, {baseline}: nothing is compared."]
    scores: list[tuple[str, Callable[[Row], Estimate | None]]] = [
        ("Avg@K", lambda row: row.delta_to_baseline),
        (f"Pass@{board.k}", lambda row: row.delta_pass_at_k.get(row.k)),
    ]
    for name, of in scores:
        said.append(compared(name, {row.method: of(row) for row in others}, baseline))
    tests = sum(settled(of(row)) for row in others for _, of in scores)
    if tests > 1:
        said.append(
            f"Both scores together are {tests} comparisons at 95 %: if no method differed from {baseline}, up to about "
            f"{tests / 20:.1f} of their intervals would still exclude 0, by chance."
        )
    said += costs(board, baseline)
    flags = dict.fromkeys(flag for row in board.rows for flag in row.flags)
    return said + [f"Of the problems: {flag}." for flag in flags]


def settled(estimate: Estimate | None) -> bool:
    """Returns whether there is an interval to be judged by."""
    return estimate is not None and estimate.low is not None


def compared(name: str, differences: dict[str, Estimate | None], baseline: str) -> str:
    """Says of one score which methods are better and worse than the baseline, and which are neither."""
    marks = {method: mark(each) for method, each in differences.items() if each is not None and settled(each)}
    parts = []
    for sign, word in ((BETTER, "better"), (WORSE, "worse")):
        these = [f"{m} ({shown(differences[m], '+')})" for m, found in marks.items() if found == sign]
        if these:
            parts.append(f"{word} than {baseline}, by an interval that excludes 0: {listed(these)}")
    ties = [method for method, found in marks.items() if not found]
    if ties:
        parts.append(f"not settled, since the interval of the difference to {baseline} holds 0: {listed(ties)}")
    without = [method for method in differences if method not in marks]
    if without:
        parts.append(f"no interval, and so not settled: {listed(without)}")
    return f"{name}: {'; '.join(parts)}."


def costs(board: Board, baseline: str) -> list[str]:
    """Says how long the methods took in comparison, and how much of the entropy is left."""
    said = []
    trained = [row for row in board.rows if row.method != BASE_MODEL]
    seconds = {row.method: {c.seed: c.seconds for c in board.cells if c.method == row.method} for row in trained}
    ratios = {}
    for method, of_seeds in seconds.items():
        shared = [seed for seed in of_seeds if seconds[baseline].get(seed, 0) > 0 and of_seeds[seed] > 0]
        if shared and method != baseline:
            ratios[method] = float(np.mean([of_seeds[seed] / seconds[baseline][seed] for seed in shared]))
    if ratios:
        each = [f"{method} {ratio:.2f}" for method, ratio in sorted(ratios.items(), key=lambda pair: pair[1])]
        said.append(
            f"Time of a cell, as a multiple of {baseline}'s with the same seed: {listed(each)}. Cells may have shared "
            "a machine with others, so small differences mean nothing."
        )
    kept = {row.method: row.entropy_kept.mean for row in board.rows if row.entropy_kept}
    if kept:
        ordered = sorted(kept.items(), key=lambda pair: -pair[1])
        said.append(
            "Entropy at the last training step, as a share of that at the first: "
            + listed([f"{method} {share:.0%}" for method, share in ordered])
            + "."
        )
    return said


def listed(words: Sequence[str] | dict[str, None]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
