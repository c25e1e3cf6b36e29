"""The field's tables and picture: which methods win or trade against GRPO, by the rules of studies/field/README.md.

    python -m studies.field.analysis RESULTS     # first take the tables of the field and its shortlist from this folder
    python -m studies.field.analysis             # draw the picture, print the answers, from results/reference

`python -m studies.pages` then fills the pages. `studies.field.tuned` does the same after tuning.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame

from harness import config
from harness.config import study_configs

REFERENCE = Path(__file__).parents[2] / "results/reference"
TASKS = {"field": "Countdown", "field-coloring": "graph coloring"}  # the matrices, and their tasks in words
FIVE_SEEDS = {"field-shortlist": "Countdown", "field-shortlist-coloring": "graph coloring"}
NEW_SEEDS = "-new-seeds"  # at the end of a name: the chosen methods with the seeds alone that did not choose them
WITH_NEW_SEEDS = {f"{matrix}{NEW_SEEDS}": words for matrix, words in FIVE_SEEDS.items()}
PICTURE = REFERENCE / "field/pareto.svg"
BASE_MODEL, BASELINE = "base model", "grpo"
AVG, PASS = "Avg@K", "Pass@16"
SLACK = 0.02  # of rule 3: how far below GRPO's a method's Avg@K may be
SHORTLIST = 10
LOWEST_SHOWN = 0.4  # Pass@16 in the pictures: a few rows ended near 0
RESAMPLES = 10_000

Scores = Mapping[str, Mapping[str, Any]]  # what `leaderboard --compare` says of a method, by score
Rows = Mapping[str, Scores]  # by method
Place = tuple[float, float]  # Avg@K and Pass@16 of a row


def take_tables(results: str, matrices: Iterable[str], *overrides: str, suffix: str = "") -> None:
    """Write the leaderboards and the comparisons of matrices that were run to results/reference."""
    for matrix in matrices:
        if (Path(results) / matrix).exists():
            take_table(results, matrix, REFERENCE / f"{matrix}{suffix}", *overrides)


def configuration(matrix: str) -> list[str]:
    """Return the configuration that a matrix is named for, and the override that chooses its round if it has one."""
    files = [name for name in study_configs() if f"{matrix}-".startswith(f"{name}-")]
    file = max(files, key=len)
    return [file] if file == matrix else [file, f"round={matrix.removeprefix(f'{file}-')}"]


def loaded(matrix: str) -> config.Config:
    """Return the configuration of a matrix, with its round."""
    name, *overrides = configuration(matrix)
    return config.load_config(name, overrides)


def take_table(results: str, matrix: str, folder: Path, *overrides: str) -> None:
    """Write the leaderboard and the comparison of a matrix to a folder."""
    folder.mkdir(exist_ok=True)
    chosen = [*configuration(matrix), f"results={results}", *overrides]
    command = [sys.executable, "-m", "entrobench", "leaderboard", *chosen]
    subprocess.run([*command, "--format", "md", "--out", str(folder / "leaderboard.md")], check=True)
    compare = [*command, "--compare", "--format", "json", "--out", str(folder / "compare.json")]
    subprocess.run(compare, check=True)


def is_kept(matrix: str) -> bool:
    """Return whether the tables of a matrix are in results/reference."""
    return (REFERENCE / matrix / "compare.json").exists()


@cache
def compared(matrix: str) -> Rows:
    """Return what `leaderboard --compare` says of each method of a matrix; read once."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for row in json.loads((REFERENCE / matrix / "compare.json").read_text()):
        if row["seeds"]:
            # Tables of tuned methods have their names, and their specs as options; old ones have the specs alone.
            name = row.get("options") or row["method"]
            if row.get("trainer"):
                name += f" (trained by {row['trainer']})"
            rows.setdefault(name, {})[row["score"]] = row
    return rows


def by_task(matrices: Mapping[str, str] = TASKS) -> dict[str, Rows]:
    """Return the rows of matrices by their tasks in words."""
    return {words: compared(matrix) for matrix, words in matrices.items()}


def verdict(scores: Scores) -> str:
    """Return the verdict of `leaderboard --compare` on a method."""
    decided: str = scored(scores, PASS)["verdict"]
    return decided


def scored(scores: Scores, score: str) -> Mapping[str, Any]:
    """Return the comparison in Avg@K or in Pass@K, whatever the K of the table."""
    kind = score.partition("@")[0]
    return next(row for name, row in scores.items() if name.startswith(f"{kind}@"))


def shown_difference(row: Mapping[str, Any]) -> str:
    """Return a difference from GRPO with half the width of its interval, and a mark if the interval excludes 0."""
    difference = row["difference"]
    if difference is None:
        return "baseline"
    if difference["low"] is None:
        return f"{difference['mean']:+.3f}"
    mark = ""
    if difference["low"] > 0:
        mark = " ▲"
    if difference["high"] < 0:
        mark = " ▼"
    return f"{difference['mean']:+.3f} ±{(difference['high'] - difference['low']) / 2:.3f}{mark}"


def mean_difference(method: str, score: str, tasks: Iterable[Rows]) -> float:
    """Return a method's mean difference from GRPO over the tasks on which it is done; nan without one."""
    differences = []
    for rows in tasks:
        row = rows.get(method, {}).get(score)
        if row and row["difference"]:
            differences.append(row["difference"]["mean"])
    return float(np.mean(differences)) if differences else float("nan")


def methods_of(tasks: Iterable[Rows], score: str = PASS) -> list[str]:
    """Return all methods that are compared with GRPO, the highest mean difference in a score first."""
    all_rows = list(tasks)
    methods = set().union(*all_rows) - {BASE_MODEL, BASELINE}
    return sorted(methods, key=lambda method: (-mean_difference(method, score, all_rows), method))


def table(tasks: Mapping[str, Rows]) -> DataFrame:
    """Return the tasks side by side as text: the highest mean difference in Pass@16 first."""
    lines = []
    for method in (BASE_MODEL, BASELINE, *methods_of(tasks.values())):
        line = {"method": method}
        for words, rows in tasks.items():
            scores = rows.get(method)
            columns = [f"{words}: {name}" for name in (f"{AVG} - grpo", f"{PASS} - grpo", "verdict", "seeds")]
            values = ["", "", "not done", "0"]
            if scores:
                differences = [shown_difference(scores[score]) for score in (AVG, PASS)]
                values = [*differences, verdict(scores), str(scores[PASS]["seeds"])]
            line |= dict(zip(columns, values, strict=True))
        lines.append(line)
    return DataFrame(lines)


def named_for_seeds(tasks: Sequence[Rows]) -> list[str]:
    """Return the methods that rule 3 names for further seeds, the highest first."""
    on_all = set.intersection(*map(set, tasks))
    eligible = [method for method in methods_of(tasks) if mean_difference(method, AVG, tasks) >= -SLACK]
    return [method for method in eligible if method in on_all][:SHORTLIST]


def gaining(tasks: Sequence[Rows]) -> list[str]:
    """Return the methods whose uncorrected interval in Pass@16 lies above GRPO's on all tasks, the highest first."""
    return [method for method in methods_of(tasks) if all(gains(rows.get(method)) for rows in tasks)]


def gains(scores: Scores | None) -> bool:
    """Return whether the uncorrected interval of a method's difference in Pass@16 lies above 0."""
    low = scores[PASS]["difference"]["low"] if scores else None
    return low is not None and low > 0


def tau_with_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return Kendall's tau of effects in two settings, with its 95 % bootstrap interval over methods.

    It is tau-b: pairs of methods in the same order in both settings, minus pairs in opposite orders, divided by the
    geometric mean of the pairs that each setting orders.
    """
    methods, generator = len(first), np.random.default_rng(0)
    drawn = generator.integers(methods, size=(RESAMPLES, methods))
    counts = [np.ones(methods), *(np.bincount(chosen, minlength=methods) for chosen in drawn)]
    order_first, order_second = (np.sign(np.subtract.outer(values, values)) for values in (first, second))
    same_minus_opposite, in_first, in_second = (
        weighted_pairs(np.array(counts), pairs)
        for pairs in (order_first * order_second, order_first**2, order_second**2)
    )
    with np.errstate(invalid="ignore"):  # a resample in which one setting orders no pair
        tau, *resampled = same_minus_opposite / np.sqrt(in_first * in_second)
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    return float(tau), float(low), float(high)


def weighted_pairs(counts: NDArray[np.float64], pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each resample the sum of a value over all pairs of methods, each as often as it was drawn."""
    return ((counts @ pairs) * counts).sum(axis=1)


def agreement(first: Rows, second: Rows, score: str) -> tuple[float, float, float, int]:
    """Return Kendall's tau of the differences from GRPO in two settings, its interval, and the number of methods."""
    methods = sorted((set(first) & set(second)) - {BASE_MODEL, BASELINE})
    means = [[scored(rows[method], score)["difference"]["mean"] for method in methods] for rows in (first, second)]
    return *tau_with_interval(*means), len(methods)


def shown_agreement(first: Rows, second: Rows, score: str) -> str:
    tau, low, high, _ = agreement(first, second, score)
    return f"{tau:.2f} [{low:.2f}, {high:.2f}]"


def tell_agreement(settings: str, first: Rows, second: Rows) -> None:
    for score in (AVG, PASS):
        *_, methods = agreement(first, second, score)
        print(f"{settings}: {score}: Kendall's tau {shown_agreement(first, second, score)}, {methods} methods")


def tell_verdicts(words: str, rows: Rows) -> None:
    verdicts = {method: verdict(scores) for method, scores in rows.items() if method != BASE_MODEL}
    for word in ("wins", "trades", "loses"):
        print(f"{words}: {word}:", *sorted(method for method, found in verdicts.items() if found == word))


def places(rows: Rows) -> dict[str, Place]:
    """Return Avg@K and Pass@16 of each row."""
    return {method: (scores[AVG]["mean"]["mean"], scores[PASS]["mean"]["mean"]) for method, scores in rows.items()}


def draw_panel(axes: Axes, title: str, means: Mapping[str, Place], named: Sequence[str]) -> None:
    """Draw Avg@K against Pass@16 of one task: a point for each method, and names in a column at the right."""
    shown = {method: place for method, place in means.items() if place[1] >= LOWEST_SHOWN}
    for method, place in shown.items():
        color = "#0072B2" if method in named else "#aaaaaa"
        if method in (BASE_MODEL, BASELINE):
            color = "#000000"
        is_named = method in named
        axes.plot(*place, "o", color=color, markersize=4 if is_named else 3, zorder=3 if is_named else 2)
    axes.set_ylim(LOWEST_SHOWN, 1)
    in_order = sorted(named, key=lambda name: -shown[name][1])
    for method, height in zip(in_order, np.linspace(0.97, 0.25, len(in_order)), strict=True):
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": "#888888", "relpos": (0, 0.5)}
        axes.annotate(
            method, shown[method], (1.06, height), textcoords="axes fraction", fontsize=7, va="center", arrowprops=line
        )
    if hidden := len(means) - len(shown):
        title = f"{title} ({hidden} rows lie below {LOWEST_SHOWN})"
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("Avg@K", fontsize=9)
    axes.set_ylabel("Pass@16", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def draw_picture(path: Path, tasks: Mapping[str, Rows], named: Mapping[str, Sequence[str]]) -> None:
    """Write a picture with a panel for each task, one below the other, narrow enough for a phone."""
    # Text stays text, and the same tables give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "entrobench", "font.family": "sans-serif"}):
        figure = Figure(figsize=(5.2, 3.6 * len(tasks)), layout="constrained")
        panels = figure.subplots(len(tasks), squeeze=False).flat
        for axes, (words, rows) in zip(panels, tasks.items(), strict=True):
            draw_panel(axes, words, places(rows), [BASE_MODEL, BASELINE, *named[words]])
        figure.savefig(path, metadata={"Date": None})


def main(*arguments: str) -> None:
    for results in arguments:
        take_tables(results, [*TASKS, *FIVE_SEEDS])
        take_tables(results, FIVE_SEEDS, "seeds=[3,4]", suffix=NEW_SEEDS)
    tasks = by_task()
    on_both = gaining([*tasks.values()])
    draw_picture(PICTURE, tasks, dict.fromkeys(tasks, on_both))
    for words, rows in tasks.items():
        tell_verdicts(words, rows)
    print("further seeds:", *named_for_seeds([*tasks.values()]))
    print("above GRPO on both tasks without a correction:", *on_both)
    tell_agreement("between the tasks", *tasks.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
