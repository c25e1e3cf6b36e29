"""The figures of a table of scores: over k, along axes, over steps, by seed and by problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.page.content import CellRecord, ScoreTable, StepEvaluation
from harness.page.figures import Figure, Styles, by_method, limits, over_steps, page_number
from harness.statistics import Estimate
from harness.table.columns import format_estimate
from harness.table.frames import setting_text
from harness.table.leaderboard import LeaderboardRow, place_text
from harness.terminal.units import plural

LISTED_PROBLEMS = 12  # problems that a table names


def score_figures(table: ScoreTable, styles: Styles) -> list[Figure]:
    """Return Avg@K against Pass@k, distinct right answers and the entropy that is kept, and Pass@k over k."""
    rows = [row for row in table.rows if row.avg_at_k is not None]
    if not rows:
        return []
    headline = f"Pass@{table.k}"
    return [
        points_figure(
            f"Avg@K against {headline}",
            "One point a method, and one of the base model. Bars are the table's 95 % intervals over seeds and "
            "problems. They are of each method alone; whether two differ is a question for the paired differences of "
            "the table.",
            ("Avg@K", headline),
            [(row, row.avg_at_k, row.pass_at_k[row.k]) for row in rows],
            styles,
        ),
        points_figure(
            "Avg@K against distinct right answers",
            "Distinct right answers: the number to a problem, of all its samples. Bars are 95 % intervals over seeds "
            "and problems, of each method alone.",
            ("Avg@K", "distinct right answers"),
            [(row, row.avg_at_k, row.right_distinct) for row in rows],
            styles,
        ),
        points_figure(
            "Avg@K against entropy kept",
            "Entropy kept: the entropy at the last training step divided by that at the first, the geometric mean over "
            "seeds. Horizontal bars are its 95 % intervals, vertical ones the table's.",
            ("entropy kept", "Avg@K"),
            [(row, row.entropy_kept, row.avg_at_k) for row in rows],
            styles,
        ),
        over_k(rows, styles),
    ]


def points_figure(
    title: str,
    note: str,
    names: tuple[str, str],
    points: Sequence[tuple[LeaderboardRow, Estimate | None, Estimate | None]],
    styles: Styles,
) -> Figure:
    """Return a point with its intervals for each row that has both numbers; `names`: of x and y."""
    series, lines = [], []
    for row, x, y in points:
        if x is not None and y is not None:
            series.append(
                {
                    "name": row.method,
                    "style": styles[row.method],
                    "x": [page_number(x.mean)],
                    "y": [page_number(y.mean)],
                    "x_limits": limits([x]),
                    "y_limits": limits([y]),
                }
            )
            lines.append([row.method, format_estimate(x), format_estimate(y)])
    return Figure(title, note, "points", *names, series, ["method", *names], lines)


def over_k(rows: Sequence[LeaderboardRow], styles: Styles) -> Figure:
    ks = sorted({k for row in rows for k in row.pass_at_k})
    series, lines = [], []
    for row in rows:
        y = [page_number(estimate.mean) for estimate in row.pass_at_k.values()]
        drawn = {"name": row.method, "style": styles[row.method], "x": list(row.pass_at_k), "y": y}
        series.append({**drawn, **limits(row.pass_at_k.values())})
        lines.append([row.method, *(format_estimate(row.pass_at_k.get(k)) for k in ks)])
    return Figure(
        "Pass@k over k",
        "The chance that k samples hold a right answer. Bands are the table's 95 % intervals over seeds and problems.",
        "lines",
        "k, samples of a problem",
        "Pass@k",
        series,
        ["method", *(f"Pass@{k}" for k in ks)],
        lines,
        options={"log_x": True, "ticks": ks, "cut": True},
    )


def axis_groups(rows: Sequence[LeaderboardRow], styles: Styles) -> list[tuple[str, list[Figure]]]:
    """Return the scores over the values of each further axis of a matrix.

    Each task, each model, and each combination of values at the other axes has figures of its own.
    """
    groups = []
    for axis in dict.fromkeys(key for row in rows for key in row.setting):
        alike: dict[tuple[str, str, str], list[LeaderboardRow]] = {}
        for row in rows:
            held = setting_text([(key, value) for key, value in row.setting.items() if key != axis])
            alike.setdefault((row.task, row.model, held), []).append(row)
        for (task, model, held), of_group in alike.items():
            if len({row.setting[axis] for row in of_group}) > 1:
                groups.append((place_text(f"{axis}: {task}", model, held), over_axis(axis, held, of_group, styles)))
    return groups


def over_axis(axis: str, held: str, rows: Sequence[LeaderboardRow], styles: Styles) -> list[Figure]:
    values, numbers, options = axis_values(axis, rows)
    scores: dict[str, tuple[dict[str, Any], Callable[[LeaderboardRow], Estimate | None]]] = {
        "Avg@K": ({"cut": True}, lambda row: row.avg_at_k),
        f"Pass@{rows[0].k}": ({"cut": True}, lambda row: row.pass_at_k.get(row.k)),
        "Entropy kept": ({}, lambda row: row.entropy_kept),
    }
    figures = []
    for name, (bounds, score_of) in scores.items():
        series, lines = [], []
        for method in dict.fromkeys(row.method for row in rows):
            known = {row.setting[axis]: score_of(row) for row in rows if row.method == method}
            drawn = [(value, estimate) for value in values if (estimate := known.get(value)) is not None]
            lines.append([method, *(format_estimate(known.get(value)) for value in values)])
            if drawn:
                estimates = [estimate for _, estimate in drawn]
                x = [numbers.get(value, value) for value, _ in drawn]
                y = [page_number(estimate.mean) for estimate in estimates]
                series.append({"name": method, "style": styles[method], "x": x, "y": y, **limits(estimates)})
        if series:
            title = place_text(f"{name} over {axis}", held)
            note = "Points are rows of the table, bands its 95 % intervals."
            note += f" Held fixed: {held}." if held else ""
            header = ["method", *(f"{axis}={value}" for value in values)]
            all_options = {**options, **bounds}
            figures.append(Figure(title, note, "lines", axis, name, series, header, lines, options=all_options))
    return figures


def axis_values(axis: str, rows: Sequence[LeaderboardRow]) -> tuple[list[str], dict[str, float], dict[str, Any]]:
    """Return the values at an axis, the numbers of numeric values, and the options of a figure over it."""
    values = list(dict.fromkeys(row.setting[axis] for row in rows))
    numbers = {value: number for value in values if (number := finite_number(value)) is not None}
    if len(numbers) < len(values):
        return values, numbers, {"names": True}
    values = sorted(values, key=numbers.__getitem__)
    least, most = numbers[values[0]], numbers[values[-1]]
    # Rounding leaves a factor of 10 at 9.999...
    return values, numbers, {"log_x": 0 < 9.99 * least <= most, "ticks": [numbers[value] for value in values]}


def finite_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def scores_of(table: ScoreTable) -> list[tuple[str, Callable[[StepEvaluation], float]]]:
    """Return the numbers of an evaluation that are drawn, by name."""
    return [
        ("Avg@K", lambda evaluation: evaluation.score(None)),
        (f"Pass@{table.k}", lambda evaluation: evaluation.score(table.k)),
        ("Distinct right answers", lambda evaluation: evaluation.right_distinct),
    ]


def progress_figures(table: ScoreTable, styles: Styles) -> list[Figure]:
    """Return the scores over the steps, where more than the beginning and the end was evaluated."""
    steps = {step for cell in table.cells for step in cell.evaluations[table.task]}
    if len(steps) < 3:
        return []
    figures = []
    for name, score in scores_of(table):
        curves = {}
        for method, cells in by_method(table.cells, styles).items():
            curves[method] = [score_curve(cell, table.task, score) for cell in cells]
        note = "Of the evaluation problems, mean over them."
        figures.append(over_steps(f"{name} over steps", note, name, curves, styles))
    return figures


def score_curve(cell: CellRecord, task: str, score: Callable[[StepEvaluation], float]) -> dict[int, float]:
    return {step: score(evaluation) for step, evaluation in cell.evaluations[task].items()}


def seed_figures(table: ScoreTable, styles: Styles) -> list[Figure]:
    """Return the scores of each seed."""
    groups = by_method(table.cells, styles)
    seeds = sorted({cell.seed for cell in table.cells})
    figures = []
    for name, score in scores_of(table):
        series, lines = [], []
        for method, cells in groups.items():
            values = {cell.seed: score(cell.last(table.task)) for cell in cells}
            x = [page_number(value) for value in values.values()]
            text = [f"seed {seed}" for seed in values]
            series.append({"name": method, "style": styles[method], "x": x, "text": text})
            lines.append([method, *(f"{values[seed]:.3f}" if seed in values else "" for seed in seeds)])
        note = "One marker a seed, of the last evaluation; the mean over its problems."
        header = ["method", *(f"seed {seed}" for seed in seeds)]
        figures.append(Figure(f"{name} of each seed", note, "dots", name, "", series, header, lines))
    return figures


def problem_figures(table: ScoreTable, styles: Styles) -> list[Figure]:
    """Return a figure for each method: the pass rate of each problem before training and after it."""
    figures = []
    for method, cells in by_method(table.cells, styles).items():
        before, after = [], []
        for cell in cells:
            evaluation = cell.before(table.task)
            if evaluation is not None:
                before.append(evaluation.rates)
                after.append(cell.last(table.task).rates)
        if before:
            figures.append(rates_figure(method, mean_rates(before), mean_rates(after), len(before), styles))
    return figures


def rates_figure(
    method: str, before: Mapping[str, float], after: Mapping[str, float], seeds: int, styles: Styles
) -> Figure:
    """Return the figure of the problems of one method by their rates before and after training."""
    problems = [problem for problem in after if problem in before]
    lost = [problem for problem in problems if before[problem] > 0 == after[problem]]
    won = [problem for problem in problems if before[problem] == 0 < after[problem]]
    others = [problem for problem in problems if problem not in {*lost, *won}]
    series = []
    for name, of_series in (("other problems", others), ("lost", lost), ("won", won)):
        x = [page_number(before[problem]) for problem in of_series]
        y = [page_number(after[problem]) for problem in of_series]
        series.append({"name": name, "style": styles[method], "x": x, "y": y, "text": of_series})
    less_often = sum(0 < after[problem] < before[problem] for problem in problems)
    more_often = sum(0 < before[problem] < after[problem] for problem in problems)
    equally_often = sum(before[problem] == after[problem] for problem in problems)
    lines = [
        ["lost", str(len(lost)), listed_problems(lost)],
        ["won", str(len(won)), listed_problems(won)],
        ["solved less often", str(less_often), ""],
        ["solved more often", str(more_often), ""],
        ["equally often", str(equally_often), ""],
    ]
    return Figure(
        f"{method}: {len(lost)} lost, {len(won)} won",
        f"{len(problems)} problems, all samples of {plural(seeds, 'seed')}.",
        "rates",
        "pass rate before training",
        "after",
        series,
        ["problems", "number", "which"],
        lines,
        small=True,
    )


def listed_problems(problems: Sequence[str]) -> str:
    more = len(problems) - LISTED_PROBLEMS
    return "; ".join(problems[:LISTED_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")


def mean_rates(of_seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over seeds, of the problems that all of them have."""
    rates = {}
    for problem in of_seeds[0]:
        values = [rates_of_seed[problem] for rates_of_seed in of_seeds if problem in rates_of_seed]
        if len(values) == len(of_seeds):
            rates[problem] = float(np.mean(values))
    return rates
