"""The figures of a table of scores: one against another, over k, along axes, over steps, by seed and by problem."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas
from pandas import DataFrame

from harness.base.units import plural
from harness.config import setting_label
from harness.page.content import ScoreTable, last_answers
from harness.page.figures import (
    Figure,
    Series,
    by_method,
    estimate_band,
    estimates_over_steps,
    limits,
    page_number,
    page_numbers,
)
from harness.table.columns import format_estimate
from harness.table.frames import BASE_MODEL
from harness.table.leaderboard import LeaderboardRow, place_text
from harness.table.statistics import Estimate

LISTED_PROBLEMS = 12  # problems that a table names


def pareto_figures(table: ScoreTable) -> list[Figure]:
    """Return Avg@K against Pass@K with the base model; nothing before any cell is done."""
    rows = [row for row in table.rows if row.avg_at_k is not None]
    if not rows:
        return []
    headline = f"Pass@{table.k}"
    figure = points_figure(
        f"Avg@K against {headline}",
        "Bars are the table's 95 % intervals, of each method alone; whether two methods differ is a question for the "
        "paired differences. The dashed line is the front: the methods that no other beats in both means.",
        ("Avg@K", headline),
        [(row, row.avg_at_k, row.pass_at_k[row.k]) for row in rows],
    )
    front = front_methods(figure.series)
    header = [*figure.header, "on the front"]
    lines = [[*line, "yes" if line[0] in front else ""] for line in figure.lines]
    return [dataclasses.replace(figure, header=header, lines=lines, options={"front": front})]


def front_methods(series: Sequence[Series]) -> list[str]:
    """Return the trained methods whose point no other has at its upper right, from the highest Avg@K down."""
    points = {one["name"]: (one["x"][0], one["y"][0]) for one in series if one["name"] != BASE_MODEL}
    front = []
    for name, (x, y) in points.items():
        upper_right = {point for point in points.values() if point[0] >= x and point[1] >= y}
        if upper_right == {(x, y)}:  # methods with the same scores do not beat each other
            front.append(name)
    return sorted(front, key=points.__getitem__, reverse=True)


def score_figures(table: ScoreTable) -> list[Figure]:
    """Return Avg@K against distinct right answers and the entropy that is kept, and Pass@k over k."""
    rows = [row for row in table.rows if row.avg_at_k is not None]
    if not rows:
        return []
    return [
        points_figure(
            "Avg@K against distinct right answers",
            "Distinct right answers: the number to a problem, of all its samples. Bars are 95 % intervals over seeds "
            "and problems, of each method alone.",
            ("Avg@K", "distinct right answers"),
            [(row, row.avg_at_k, row.right_distinct) for row in rows],
        ),
        points_figure(
            "Avg@K against entropy kept",
            "Entropy kept: the entropy at the last training step divided by that at the first, the geometric mean over "
            "seeds. Horizontal bars are its 95 % intervals, vertical ones the table's.",
            ("entropy kept", "Avg@K"),
            [(row, row.entropy_kept, row.avg_at_k) for row in rows],
        ),
        over_k(rows),
    ]


def points_figure(
    title: str,
    note: str,
    names: tuple[str, str],
    points: Sequence[tuple[LeaderboardRow, Estimate | None, Estimate | None]],
) -> Figure:
    """Return a point with its intervals for each row that has both numbers; `names`: of x and y."""
    series, lines = [], []
    for row, x, y in points:
        if x is not None and y is not None:
            series.append(
                {
                    "name": row.method,
                    "x": [page_number(x.mean)],
                    "y": [page_number(y.mean)],
                    "x_limits": limits([x]),
                    "y_limits": limits([y]),
                }
            )
            lines.append([row.method, format_estimate(x), format_estimate(y)])
    return Figure(title, note, "points", *names, series, ["method", *names], lines)


def over_k(rows: Sequence[LeaderboardRow]) -> Figure:
    ks = sorted(set().union(*(row.pass_at_k for row in rows)))
    series, lines = series_over({row.method: row.pass_at_k for row in rows}, ks)
    return Figure(
        "Pass@k over k",
        "The chance that k samples hold a right answer. Bands are the table's 95 % intervals over seeds and problems.",
        "lines",
        "k, samples of a problem",
        "Pass@k",
        series,
        ["method", *map("Pass@{}".format, ks)],
        lines,
        options={"log_x": True, "ticks": ks, "cut": True},
    )


def series_over(
    estimates: Mapping[str, Mapping[Any, Estimate]], values: Sequence[Any], numbers: Mapping[Any, float] | None = None
) -> tuple[list[Series], list[list[str]]]:
    """Return the estimates of each method over some values as series and as lines of a table, where a missing one is
    empty; `numbers`: the places of values that are texts."""
    series, lines = [], []
    for method, by_value in estimates.items():
        present = [value for value in values if value in by_value]
        if present:
            x = [(numbers or {}).get(value, value) for value in present]
            series.append({"name": method, "x": x, **estimate_band([by_value[value] for value in present])})
        lines.append([method, *(format_estimate(by_value.get(value)) for value in values)])
    return series, lines


def axis_groups(rows: Sequence[LeaderboardRow]) -> list[tuple[str, list[Figure]]]:
    """Return the scores over the values of each further axis of a matrix.

    Each task, each model, and each combination of values at the other axes has figures of its own.
    """
    axes = dict.fromkeys(axis for row in rows for axis in row.setting)  # in the order of the configuration
    groups = []
    for axis in axes:
        alike: dict[tuple[str, str, str], list[LeaderboardRow]] = {}
        for row in rows:
            held = setting_label({key: value for key, value in row.setting.items() if key != axis})
            alike.setdefault((row.task, row.model, held), []).append(row)
        for (task, model, held), of_group in alike.items():
            if len({row.setting[axis] for row in of_group}) > 1:
                title = place_text(f"{axis}: {task}", model, held)
                groups.append((title, over_axis(axis, held, of_group)))
    return groups


def over_axis(axis: str, held: str, rows: Sequence[LeaderboardRow]) -> list[Figure]:
    """Return the scores over the values of one axis; `held`: the values at the others, as text."""
    values, numbers, options = axis_values(axis, rows)
    scores: dict[str, tuple[dict[str, Any], Callable[[LeaderboardRow], Estimate | None]]] = {
        "Avg@K": ({"cut": True}, lambda row: row.avg_at_k),
        f"Pass@{rows[0].k}": ({"cut": True}, lambda row: row.pass_at_k.get(row.k)),
        "Entropy kept": ({}, lambda row: row.entropy_kept),
    }
    figures = []
    for name, (bounds, score_of) in scores.items():
        estimates: dict[str, dict[str, Estimate]] = {row.method: {} for row in rows}  # by method and value at the axis
        for row in rows:
            if (estimate := score_of(row)) is not None:
                estimates[row.method][row.setting[axis]] = estimate
        series, lines = series_over(estimates, values, numbers)
        if series:
            title = place_text(f"{name} over {axis}", held)
            note = "Points are rows of the table, bands its 95 % intervals."
            if held:
                note += f" Held fixed: {held}."
            header = ["method", *(f"{axis}={value}" for value in values)]
            figures.append(Figure(title, note, "lines", axis, name, series, header, lines, options=options | bounds))
    return figures


def axis_values(axis: str, rows: Sequence[LeaderboardRow]) -> tuple[list[str], dict[str, float], dict[str, Any]]:
    """Return the values at an axis, their numbers if all have one, and the options of a figure over it."""
    values = list(dict.fromkeys(row.setting[axis] for row in rows))
    numbers = dict(zip(values, pandas.to_numeric(pandas.Series(values), errors="coerce").tolist(), strict=True))
    if not np.isfinite(list(numbers.values())).all():
        return values, {}, {"names": True}
    values = sorted(values, key=numbers.__getitem__)
    ticks = sorted(numbers.values())
    # Logarithmic from a factor of 10 on, which rounding may leave at 9.999...
    is_wide = 0 < 9.99 * ticks[0] <= ticks[-1]
    return values, numbers, {"log_x": is_wide, "ticks": ticks}


def progress_figures(table: ScoreTable, methods: Sequence[str]) -> list[Figure]:
    """Return the scores over the steps, where more than the beginning and the end of a cell was evaluated.

    A cell that ended early keeps its last evaluation at later steps, as in the table.
    """
    if not len(table.answers) or table.answers.groupby("cell")["step"].nunique().max() < 3:
        return []
    by_score: dict[str, dict[str, dict[int, Estimate]]] = {name: {} for name in table.score_names}
    for method, of_method in by_method(table.answers, methods):
        last_step = of_method.groupby("cell")["step"].transform("max")
        for step in sorted(of_method["step"].unique()):
            has_ended = (of_method["step"] == last_step) & (last_step < step)
            evaluations = of_method[(of_method["step"] == step) | has_ended]
            if evaluations["cell"].nunique() < of_method["cell"].nunique():
                continue  # at this step some cells were not evaluated
            for name, estimate in table.estimates(evaluations).items():
                by_score[name].setdefault(method, {})[int(step)] = estimate
    note = "Of the evaluation problems, with the intervals of the table: over seeds and problems."
    return [estimates_over_steps(f"{name} over steps", note, name, estimates) for name, estimates in by_score.items()]


def seed_figures(table: ScoreTable, methods: Sequence[str]) -> list[Figure]:
    scores = table.scores
    seeds = sorted(scores["seed"].unique())
    header = ["method", *(f"seed {seed}" for seed in seeds)]
    figures = []
    for name in table.score_names:
        series, lines = [], []
        for method, of_method in by_method(scores, methods):
            values = of_method.set_index("seed")[name]
            text = [f"seed {seed}" for seed in values.index]
            series.append({"name": method, "x": page_numbers(values), "text": text})
            lines.append([method, *(f"{values[seed]:.3f}" if seed in values.index else "" for seed in seeds)])
        note = "One marker a seed, of the last evaluation; the mean over its problems."
        figures.append(Figure(f"{name} of each seed", note, "dots", name, "", series, header, lines))
    return figures


def problem_figures(table: ScoreTable, methods: Sequence[str]) -> list[Figure]:
    """Return a figure for each method: the pass rate of each problem before training and after it."""
    before = table.answers[table.answers["step"] == 0]
    last = last_answers(table.answers)
    # Both sorted by seed: the order of a sum decides its last digits, and rates are compared.
    after = dict(by_method(last[last["cell"].isin(before["cell"])], methods))
    return [
        rates_figure(method, mean_rates(of_method), mean_rates(after[method]), of_method["seed"].nunique())
        for method, of_method in by_method(before, methods)
    ]


def rates_figure(method: str, before: Mapping[str, float], after: Mapping[str, float], seeds: int) -> Figure:
    """Return the figure of the problems of one method by their rates before and after training."""
    both = [problem for problem in after if problem in before]
    lost = [problem for problem in both if before[problem] > 0 == after[problem]]
    won = [problem for problem in both if before[problem] == 0 < after[problem]]
    others = [problem for problem in both if problem not in {*lost, *won}]
    signs = Counter(np.sign(after[problem] - before[problem]) for problem in others)
    series = []
    for name, problems in (("other problems", others), ("lost", lost), ("won", won)):
        x = page_numbers(map(before.__getitem__, problems))
        y = page_numbers(map(after.__getitem__, problems))
        series.append({"name": name, "x": x, "y": y, "text": problems})
    lines = [
        ["lost", str(len(lost)), listed_problems(lost)],
        ["won", str(len(won)), listed_problems(won)],
        ["solved less often", str(signs[-1]), ""],
        ["solved more often", str(signs[1]), ""],
        ["equally often", str(signs[0]), ""],
    ]
    return Figure(
        f"{method}: {len(lost)} lost, {len(won)} won",
        f"{len(both)} problems, all samples of {plural(seeds, 'seed')}.",
        "rates",
        "pass rate before training",
        "after",
        series,
        ["problems", "number", "which"],
        lines,
        small=True,
    )


def listed_problems(problems: Sequence[str]) -> str:
    listed, more = list(problems[:LISTED_PROBLEMS]), len(problems) - LISTED_PROBLEMS
    if more > 0:
        listed.append(f"and {more} more")
    return "; ".join(listed)


def mean_rates(answers: DataFrame) -> dict[str, float]:
    """Return the pass rate of each problem, mean over the seeds, of the problems that all of them have."""
    rates = (answers["right"] / answers["samples"]).groupby(answers["problem"], sort=False)
    of_all_seeds = rates.size() == answers["seed"].nunique()
    return rates.mean()[of_all_seeds].to_dict()
