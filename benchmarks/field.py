"""The field's tables and picture: which methods win or trade against GRPO, by the rules of docs/evidence/field.md.

    python -m benchmarks.field RESULTS     # first take the tables of the field and its shortlist from this folder
    python -m benchmarks.field             # draw the picture, print the answers, from results/reference

`python -m benchmarks.reference` then fills the pages.
"""

from __future__ import annotations

import json
import shutil
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

from harness.config import CHOICE, TUNE_SUFFIX, TUNED_SUFFIX
from harness.study.tune import TABLE as CANDIDATES

REFERENCE = Path(__file__).parent.parent / "results/reference"
TASKS = {"field": "Countdown", "field-coloring": "graph coloring"}  # the matrices, and their tasks in words
FIVE_SEEDS = {"field-shortlist": "Countdown", "field-shortlist-coloring": "graph coloring"}
NEW = "-new"  # at the end of a folder: the shortlist with the seeds alone that did not choose it
NEW_SEEDS = {f"{matrix}{NEW}": words for matrix, words in FIVE_SEEDS.items()}
TUNED = "field-shortlist-tuned"
PICTURE = REFERENCE / "field/pareto.svg"
BASE_MODEL, BASELINE = "base model", "grpo"
AVG, PASS = "Avg@K", "Pass@16"
SIGNIFICANT = 0.05
SLACK = 0.02  # of rule 3: how far below GRPO's a method's Avg@K may be
SHORTLIST = 10
LOWEST_SHOWN = 0.4  # Pass@16 in the picture: a few rows ended near 0
RESAMPLES = 10_000


def take_tables(results: str, matrices: Iterable[str], *overrides: str, suffix: str = "") -> None:
    """Write the leaderboards and the comparisons of matrices that were run to results/reference."""
    for matrix in matrices:
        if (Path(results) / matrix).exists():
            take_table(results, matrix, REFERENCE / f"{matrix}{suffix}", *overrides)


def take_table(results: str, matrix: str, folder: Path, *overrides: str) -> None:
    """Write the leaderboard and the comparison of a matrix to a folder."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "harness.cli", "leaderboard", matrix, f"results={results}", *overrides]
    subprocess.run([*command, "--format", "md", "--out", str(folder / "leaderboard.md")], check=True)
    compare = [*command, "--compare", "--format", "json", "--out", str(folder / "compare.json")]
    subprocess.run(compare, check=True)


def take_tuned(results: str) -> None:
    """Write the tables of the tuned shortlist, if it was run, with the choice and the candidates' scores."""
    if not (Path(results) / f"{TUNED}{TUNED_SUFFIX}").exists():
        return
    take_table(results, TUNED, REFERENCE / TUNED, "ruleset=tuned")
    for name in (CHOICE, CANDIDATES):
        shutil.copy(Path(results) / f"{TUNED}{TUNE_SUFFIX}" / name, REFERENCE / TUNED)


@cache
def compared(matrix: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what `leaderboard --compare` says of each method, by method and score; read once."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for row in json.loads((REFERENCE / matrix / "compare.json").read_text()):
        if row["seeds"]:
            rows.setdefault(row["method"], {})[row["score"]] = row
    return rows


def verdict(scores: dict[str, dict[str, Any]]) -> str:
    """Return what rule 2 says of a method on one task."""
    p_value = scores[PASS]["p_holm"]
    if p_value is None or p_value >= SIGNIFICANT or scores[PASS]["difference"]["mean"] <= 0:
        return ""
    return "trades" if scores[AVG]["difference"]["high"] < 0 else "wins"


def shown_difference(row: dict[str, Any]) -> str:
    """Return a difference to GRPO with half the width of its interval, and a mark if the interval excludes 0."""
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


def mean_difference(method: str, score: str, tasks: Iterable[str] = TASKS) -> float:
    """Return a method's mean difference to GRPO over the tasks on which it is done; nan without one."""
    differences = []
    for matrix in tasks:
        row = compared(matrix).get(method, {}).get(score)
        if row and row["difference"]:
            differences.append(row["difference"]["mean"])
    return float(np.mean(differences)) if differences else float("nan")


def table(tasks: Mapping[str, str] = TASKS) -> DataFrame:
    """Return both tasks side by side as text: the highest mean difference in Pass@16 first."""
    by_task = {words: compared(matrix) for matrix, words in tasks.items()}
    methods = set.union(*(set(rows) for rows in by_task.values())) - {BASE_MODEL, BASELINE}
    ordered = sorted(methods, key=lambda method: (-mean_difference(method, PASS, tasks), method))
    lines = []
    for method in (BASE_MODEL, BASELINE, *ordered):
        line = {"method": method}
        for words, rows in by_task.items():
            scores = rows.get(method)
            columns = [f"{words}: {name}" for name in (f"{AVG} - grpo", f"{PASS} - grpo", "rule", "seeds")]
            values = ["", "", "not done", "0"]
            if scores:
                differences = [shown_difference(scores[score]) for score in (AVG, PASS)]
                values = [*differences, verdict(scores), str(scores[PASS]["seeds"])]
            line |= dict(zip(columns, values, strict=True))
        lines.append(line)
    return DataFrame(lines)


def shortlist() -> list[str]:
    """Return the methods that rule 3 names for further seeds, the highest first."""
    methods = set.intersection(*(set(compared(matrix)) for matrix in TASKS)) - {BASE_MODEL, BASELINE}
    eligible = [method for method in methods if mean_difference(method, AVG) >= -SLACK]
    return sorted(eligible, key=lambda method: (-mean_difference(method, PASS), method))[:SHORTLIST]


def gains_on_both() -> list[str]:
    """Return the methods whose uncorrected interval in Pass@16 lies above GRPO's on both tasks, as in the table."""
    gaining = []
    for method in table()["method"]:
        differences = [compared(matrix).get(method, {}).get(PASS, {}).get("difference") for matrix in TASKS]
        if method != BASE_MODEL and all(each and each["low"] is not None and each["low"] > 0 for each in differences):
            gaining.append(method)
    return gaining


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


def agreement(score: str) -> tuple[float, float, float, int]:
    """Return Kendall's tau between the tasks with its interval, and the number of methods."""
    first, second = (compared(matrix) for matrix in TASKS)
    methods = sorted((set(first) & set(second)) - {BASE_MODEL, BASELINE})
    means = [[rows[method][score]["difference"]["mean"] for method in methods] for rows in (first, second)]
    return *tau_with_interval(*means), len(methods)


def draw_panel(axes: Axes, matrix: str, named: list[str]) -> None:
    """Draw Avg@K against Pass@16 of one task: a point for each method, and names in a column at the right."""
    means = {}
    for method, scores in compared(matrix).items():
        means[method] = (scores[AVG]["mean"]["mean"], scores[PASS]["mean"]["mean"])
    shown = {method: place for method, place in means.items() if place[1] >= LOWEST_SHOWN}
    for method, place in shown.items():
        color = "#0072B2" if method in named else "#aaaaaa"
        if method in (BASE_MODEL, BASELINE):
            color = "#000000"
        axes.plot(*place, "o", color=color, markersize=4 if method in named else 3)
    axes.set_ylim(LOWEST_SHOWN, 1)
    in_order = sorted(named, key=lambda name: -shown[name][1])
    for method, height in zip(in_order, np.linspace(0.97, 0.25, len(in_order)), strict=True):
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": "#888888", "relpos": (0, 0.5)}
        axes.annotate(
            method, shown[method], (1.06, height), textcoords="axes fraction", fontsize=7, va="center", arrowprops=line
        )
    hidden = len(means) - len(shown)
    axes.set_title(f"{TASKS[matrix]} ({hidden} rows lie below {LOWEST_SHOWN})", fontsize=10, loc="left")
    axes.set_xlabel("Avg@K", fontsize=9)
    axes.set_ylabel("Pass@16", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def draw_picture() -> None:
    """Write the picture: one panel below the other, narrow enough for a phone."""
    # Text stays text, and the same tables give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "entrobench", "font.family": "sans-serif"}):
        figure = Figure(figsize=(5.2, 7.2), layout="constrained")
        named = [BASE_MODEL, BASELINE, *gains_on_both()]
        for axes, matrix in zip(figure.subplots(2, 1), TASKS, strict=True):
            draw_panel(axes, matrix, named)
        figure.savefig(PICTURE, metadata={"Date": None})


def main(*arguments: str) -> None:
    for results in arguments:
        take_tables(results, [*TASKS, *FIVE_SEEDS])
        take_tables(results, FIVE_SEEDS, "seeds=[3,4]", suffix=NEW)
        take_tuned(results)
    draw_picture()
    for matrix, words in (TASKS | {TUNED: "Countdown, tuned"}).items():
        verdicts = {method: verdict(scores) for method, scores in compared(matrix).items() if method != BASE_MODEL}
        for word in ("wins", "trades"):
            print(f"{words}: {word}:", *sorted(method for method, found in verdicts.items() if found == word))
    print("further seeds:", *shortlist())
    print("above GRPO on both tasks without a correction:", *gains_on_both())
    for score in (AVG, PASS):
        tau, low, high, methods = agreement(score)
        print(f"{score}: Kendall's tau between the tasks {tau:.2f} [{low:.2f}, {high:.2f}], {methods} methods")


if __name__ == "__main__":
    main(*sys.argv[1:])
