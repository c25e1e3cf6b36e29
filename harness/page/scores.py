"""The figures of a board: how well methods do, over k, along axes, by seed and by problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.config import told
from harness.page.figures import Figure, Series, Styles, by_method, finite, limits, over_steps
from harness.page.story import Board, Evaluation
from harness.statistics import Estimate
from harness.table.columns import shown
from harness.table.leaderboard import Row

LISTED = 12  # problems that a table names


def score_figures(board: Board, styles: Styles) -> list[Figure]:
    """Returns Avg@K against Pass@k, Avg@K against the entropy that is kept, and Pass@k over k."""
    rows = [row for row in board.rows if row.avg_at_k is not None]
    if not rows:
        return []
    against = [against_pass(board, rows, styles), against_diversity(rows, styles), against_entropy(board, rows, styles)]
    return [*against, over_k(rows, styles)]


def point(row: Row, styles: Styles, x: Estimate, y: Estimate) -> Series:
    return {
        "name": row.method,
        "style": styles[row.method],
        "x": [finite(x.mean)],
        "y": [finite(y.mean)],
        "x_limits": limits([x]),
        "y_limits": limits([y]),
    }


def against_pass(board: Board, rows: Sequence[Row], styles: Styles) -> Figure:
    pairs = [(row, avg, row.pass_at_k[row.k]) for row in rows if (avg := row.avg_at_k) is not None]
    return Figure(
        f"Avg@K against Pass@{board.k}",
        "One point a method, and one of the base model. Bars are the table's 95 % intervals over seeds and problems. "
        "They are of each method alone; whether two differ is a question for the paired differences of the table.",
        "points",
        "Avg@K",
        f"Pass@{board.k}",
        [point(row, styles, avg, passed) for row, avg, passed in pairs],
        ["method", "Avg@K", f"Pass@{board.k}"],
        [[row.method, shown(avg), shown(passed)] for row, avg, passed in pairs],
    )


def against_diversity(rows: Sequence[Row], styles: Styles) -> Figure:
    """Return Avg@K against distinct right answers."""
    pairs = [(row, row.avg_at_k, row.right_distinct) for row in rows]
    known = [(row, avg, distinct) for row, avg, distinct in pairs if avg is not None and distinct is not None]
    return Figure(
        "Avg@K against distinct right answers",
        "Distinct right answers: the number to a problem, of all its samples. Bars are 95 % intervals over seeds and "
        "problems, of each method alone.",
        "points",
        "Avg@K",
        "distinct right answers",
        [point(row, styles, avg, distinct) for row, avg, distinct in known],
        ["method", "Avg@K", "distinct right answers"],
        [[row.method, shown(avg), shown(distinct)] for row, avg, distinct in known],
    )


def against_entropy(board: Board, rows: Sequence[Row], styles: Styles) -> Figure:
    series, lines = [], []
    for row in rows:
        if row.entropy_kept and row.avg_at_k:
            series.append(point(row, styles, row.entropy_kept, row.avg_at_k))
            lines.append([row.method, shown(row.entropy_kept), shown(row.avg_at_k)])
    return Figure(
        "Avg@K against entropy kept",
        "Entropy kept: the entropy at the last training step divided by that at the first, the geometric mean over "
        "seeds. Horizontal bars are its 95 % intervals, vertical ones the table's.",
        "points",
        "entropy kept",
        "Avg@K",
        series,
        ["method", "entropy kept", "Avg@K"],
        lines,
    )


def over_k(rows: Sequence[Row], styles: Styles) -> Figure:
    ks = sorted({k for row in rows for k in row.pass_at_k})
    return Figure(
        "Pass@k over k",
        "The chance that k samples hold a right answer. Bands are the table's 95 % intervals over seeds and problems.",
        "lines",
        "k, samples of a problem",
        "Pass@k",
        [
            {
                "name": row.method,
                "style": styles[row.method],
                "x": list(row.pass_at_k),
                "y": [finite(each.mean) for each in row.pass_at_k.values()],
                **limits(row.pass_at_k.values()),
            }
            for row in rows
        ],
        ["method", *(f"Pass@{k}" for k in ks)],
        [[row.method, *(shown(row.pass_at_k.get(k)) for k in ks)] for row in rows],
        options={"log_x": True, "ticks": ks, "cut": True},
    )


def axis_groups(rows: Sequence[Row], styles: Styles) -> list[tuple[str, list[Figure]]]:
    """Returns the scores over the values of each axis that a matrix has beside methods, tasks, models and seeds: apart
    for each task, each model, and each combination of values at the other axes."""
    found = []
    for axis in dict.fromkeys(key for row in rows for key in row.setting):
        alike: dict[tuple[str, str, str], list[Row]] = {}
        for row in rows:
            held = told({key: value for key, value in row.setting.items() if key != axis})
            alike.setdefault((row.task, row.model, held), []).append(row)
        for (task, model, held), these in alike.items():
            if len({row.setting[axis] for row in these}) > 1:
                title = ", ".join(filter(None, (f"{axis}: {task}", model, held)))
                found.append((title, over_axis(axis, held, these, styles)))
    return found


def over_axis(axis: str, held: str, rows: Sequence[Row], styles: Styles) -> list[Figure]:
    values = list(dict.fromkeys(row.setting[axis] for row in rows))
    numbers = {value: found for value in values if (found := as_number(value)) is not None}
    options: dict[str, Any] = {"names": True}
    if len(numbers) == len(values):
        values = sorted(values, key=numbers.__getitem__)
        least, most = numbers[values[0]], numbers[values[-1]]
        options = {"log_x": 0 < 9.99 * least <= most, "ticks": [numbers[value] for value in values]}
    scores: dict[str, tuple[dict[str, Any], Callable[[Row], Estimate | None]]] = {
        "Avg@K": ({"cut": True}, lambda row: row.avg_at_k),
        f"Pass@{rows[0].k}": ({"cut": True}, lambda row: row.pass_at_k.get(row.k)),
        "Entropy kept": ({}, lambda row: row.entropy_kept),
    }
    figures = []
    for name, (bounds, of) in scores.items():
        series, lines = [], []
        for method in dict.fromkeys(row.method for row in rows):
            known = {row.setting[axis]: score for row in rows if row.method == method and (score := of(row))}
            here = [value for value in values if value in known]
            estimates = [known[value] for value in here]
            lines.append([method, *(shown(known.get(value)) for value in values)])
            if here:
                x, y = [numbers.get(value, value) for value in here], [finite(each.mean) for each in estimates]
                series.append({"name": method, "style": styles[method], "x": x, "y": y, **limits(estimates)})
        title = ", ".join(filter(None, (f"{name} over {axis}", held)))
        note = "Points are rows of the table, bands its 95 % intervals." + f" Held fixed: {held}." * bool(held)
        header = ["method", *(f"{axis}={value}" for value in values)]
        drawn = Figure(title, note, "lines", axis, name, series, header, lines, options={**options, **bounds})
        figures += [drawn] if series else []
    return figures


def as_number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def scores_of(board: Board) -> list[tuple[str, Callable[[Evaluation], float]]]:
    """Return the numbers of an evaluation that are drawn, by name."""
    return [
        ("Avg@K", lambda evaluation: evaluation.score(None)),
        (f"Pass@{board.k}", lambda evaluation: evaluation.score(board.k)),
        ("Distinct right answers", lambda evaluation: evaluation.right_distinct),
    ]


def progress_figures(board: Board, styles: Styles) -> list[Figure]:
    """Returns the scores over the steps, where more than the beginning and the end was evaluated."""
    steps = {step for cell in board.cells for step in cell.evaluations[board.task]}
    if len(steps) < 3:
        return []
    scores = scores_of(board)
    return [
        over_steps(
            f"{name} over steps",
            "Of the evaluation problems, mean over them.",
            name,
            {
                method: [{s: score(e) for s, e in cell.evaluations[board.task].items()} for cell in cells]
                for method, cells in by_method(board.cells, styles).items()
            },
            styles,
        )
        for name, score in scores
    ]


def seed_figures(board: Board, styles: Styles) -> list[Figure]:
    """Returns the scores of each seed."""
    groups = by_method(board.cells, styles)
    figures = []
    for name, score in scores_of(board):
        values = {m: {cell.seed: score(cell.last(board.task)) for cell in cells} for m, cells in groups.items()}
        seeds = sorted({seed for of_seeds in values.values() for seed in of_seeds})
        figures.append(
            Figure(
                f"{name} of each seed",
                "One marker a seed, of the last evaluation; the mean over its problems.",
                "dots",
                name,
                "",
                [
                    {
                        "name": method,
                        "style": styles[method],
                        "x": [finite(value) for value in of_seeds.values()],
                        "text": [f"seed {seed}" for seed in of_seeds],
                    }
                    for method, of_seeds in values.items()
                ],
                ["method", *(f"seed {seed}" for seed in seeds)],
                [
                    [method, *(f"{of_seeds[seed]:.3f}" if seed in of_seeds else "" for seed in seeds)]
                    for method, of_seeds in values.items()
                ],
            )
        )
    return figures


def problem_figures(board: Board, styles: Styles) -> list[Figure]:
    """Returns, for each method, how often each problem was solved before training and after it."""
    figures = []
    for method, cells in by_method(board.cells, styles).items():
        both = [(before, cell.last(board.task)) for cell in cells if (before := cell.before(board.task))]
        if not both:
            continue
        x, y = (mean_rates([pair[side].rates for pair in both]) for side in (0, 1))
        problems = [problem for problem in y if problem in x]
        lost = [problem for problem in problems if x[problem] > 0 == y[problem]]
        won = [problem for problem in problems if x[problem] == 0 < y[problem]]
        rest = [problem for problem in problems if problem not in {*lost, *won}]
        counts = {
            "lost": len(lost),
            "won": len(won),
            "solved less often": sum(0 < y[p] < x[p] for p in problems),
            "solved more often": sum(0 < x[p] < y[p] for p in problems),
            "as often": sum(x[p] == y[p] for p in problems),
        }
        figures.append(
            Figure(
                f"{method}: {len(lost)} lost, {len(won)} won",
                f"{len(problems)} problems, all samples of {len(both)} {'seed' if len(both) == 1 else 'seeds'}.",
                "rates",
                "pass rate before training",
                "after",
                [
                    {
                        "name": what,
                        "style": styles[method],
                        "x": [finite(x[p]) for p in these],
                        "y": [finite(y[p]) for p in these],
                        "text": these,
                    }
                    for what, these in (("other problems", rest), ("lost", lost), ("won", won))
                ],
                ["problems", "number", "which"],
                [
                    [what, str(number), named({"lost": lost, "won": won}.get(what, []))]
                    for what, number in counts.items()
                ],
                small=True,
            )
        )
    return figures


def named(problems: Sequence[str]) -> str:
    more = len(problems) - LISTED
    return "; ".join(problems[:LISTED]) + (f"; and {more} more" if more > 0 else "")


def mean_rates(of_seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean over seeds, of the problems that all of them have."""
    return {p: float(np.mean([rates[p] for rates in of_seeds])) for p in of_seeds[0] if all(p in r for r in of_seeds)}
