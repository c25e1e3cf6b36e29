"""Tokens until a target is reached, and performance profiles over tasks.

The targets of a seed are two: the final Avg@K of the baseline with that seed, and the Pass@K of its base model plus a
gain. It has reached one at its first evaluation after step 0 with at least that score, after the tokens that it had
sampled up to that step: `eval.every` is the resolution. A method has the median over its seeds, which is
infinite if half of them or more never got there.

A profile compares the tokens of methods over all tables: rho(r) is the share of tables in which a method needs at most
r times the tokens of the best method, and its score the mean of rho(r) over r from 1 to 4. A table in which no method
reaches the target does not count.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.cells.spec import TRAINER
from harness.table.frames import BASE_MODEL, Axes, Frames, done_cells, label_of, setting_text, with_base_models
from harness.table.leaderboard import place_text
from harness.table.render import Table, render_document
from harness.tracking.sync import metric_name

if TYPE_CHECKING:
    from pandas import DataFrame

    from harness.table.experiment import Experiment
    from harness.tracking.reader import Curves

TOKENS = "tokens/generated"
ROUNDING = 1e-9  # of a score: sums in another order differ by some 1e-16
LARGEST_RATIO = 4.0  # of a profile, as in AlgoPerf
NEVER = "not reached"


@dataclass(frozen=True)
class Reach:
    """The tokens that a method sampled until it had reached the two targets of a table; None: not reached."""

    task: str
    model: str
    setting: str
    method: str
    seeds: int
    target_avg: float
    tokens_to_avg: float | None
    seeds_to_avg: int
    target_pass: float | None  # None: the base model was not evaluated
    tokens_to_pass: float | None
    seeds_to_pass: int
    profile_avg: float | None = None  # over all tables; None if no method reaches the target in any
    profile_pass: float | None = None


def tokens_until(scores: Mapping[int, float], tokens: Mapping[int, float], target: float) -> float:
    """Return the tokens sampled up to the first step with at least this score; infinity if there is none."""
    for step in sorted(scores):
        # Before training, no method has done anything.
        if step > 0 and scores[step] >= target - ROUNDING:
            sampled = [number for at, number in tokens.items() if at <= step]
            return sum(sampled)
    return math.inf


def profile_score(ratios: Sequence[float]) -> float:
    """Return the mean of rho(r) over r from 1 to 4; `ratios`: to the best method, of each table."""
    # rho is a step from 0 to 1 at each ratio: its mean is the share of the range that lies beyond the ratio.
    beyond = [LARGEST_RATIO - min(ratio, LARGEST_RATIO) for ratio in ratios]
    return statistics.fmean(length / (LARGEST_RATIO - 1) for length in beyond)


def profile_scores(by_table: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the score of each method; `by_table`: the tokens of methods, infinite where one is not there."""
    counted = []
    for tokens in by_table:
        best = min(tokens.values(), default=math.inf)
        if math.isfinite(best):
            counted.append(ratios_to_best(tokens, best))
    methods: dict[str, None] = {}
    for ratios in counted:
        methods |= dict.fromkeys(ratios)
    scores = {}
    for method in methods:
        scores[method] = profile_score([ratios.get(method, math.inf) for ratios in counted])
    return scores


def ratios_to_best(tokens: Mapping[str, float], best: float) -> dict[str, float]:
    ratios = {}
    for method, number in tokens.items():
        if number == best:
            ratios[method] = 1.0  # also if both are 0
        else:
            ratios[method] = number / best if best else math.inf
    return ratios


def reaches(frames: Frames, experiment: Experiment, baseline: str, ks: Mapping[str, int], gain: float) -> list[Reach]:
    """Return a row for each method of each table whose baseline is done."""
    rows: list[Reach] = []
    with_bases = with_base_models(frames).tables
    for axes, methods in with_bases.items():
        done = {method: done_cells(cells) for method, cells in methods.items()}
        if baseline in done and not done[baseline].empty:
            _, evaluated, *_ = axes
            rows += reaches_of_table(frames, experiment, axes, done, baseline, ks[evaluated], gain)
    avg_tables: dict[tuple[str, str, str], dict[str, float]] = {}
    pass_tables: dict[tuple[str, str, str], dict[str, float]] = {}
    for each in rows:
        place = (each.task, each.model, each.setting)
        avg_tables.setdefault(place, {})[each.method] = or_never(each.tokens_to_avg)
        pass_tables.setdefault(place, {})[each.method] = or_never(each.tokens_to_pass)
    avg_profiles = profile_scores(list(avg_tables.values()))
    pass_profiles = profile_scores(list(pass_tables.values()))
    with_profiles = []
    for each in rows:
        avg, of_pass = avg_profiles.get(each.method), pass_profiles.get(each.method)
        with_profiles.append(replace(each, profile_avg=avg, profile_pass=of_pass))
    return with_profiles


def or_never(tokens: float | None) -> float:
    return math.inf if tokens is None else tokens


def reaches_of_table(
    frames: Frames,
    experiment: Experiment,
    axes: Axes,
    done: Mapping[str, DataFrame],
    baseline: str,
    k: int,
    gain: float,
) -> list[Reach]:
    """Return a row for each method of one table."""
    _, evaluated, model, setting = axes
    avg_targets = seed_scores(frames, done[baseline], None)
    pass_targets: dict[int, float] = {}
    if BASE_MODEL in done:
        for seed, score in seed_scores(frames, done[BASE_MODEL], k).items():
            pass_targets[seed] = score + gain
    avg_name, pass_name = metric_name(f"eval/{evaluated}/avg"), metric_name(f"eval/{evaluated}/pass@{k}")
    rows = []
    for method, all_cells in done.items():
        cells = all_cells[all_cells["seed"].isin(list(avg_targets))]
        if method == BASE_MODEL or cells.empty:
            continue
        runs = [experiment.done[cell] for cell in cells["cell"]]
        if any(TRAINER in run.tags for run in runs):
            continue  # trained elsewhere, where nothing here has counted the tokens
        curves = experiment.source.curves(runs, {TOKENS, avg_name, pass_name}.__contains__)
        to_avg, to_pass = [], []
        for seed, of_run in zip(cells["seed"], curves, strict=True):
            to_avg.append(tokens_of_curves(of_run, avg_name, avg_targets[seed]))
            to_pass.append(tokens_of_curves(of_run, pass_name, pass_targets.get(seed, math.inf)))
        rows.append(
            Reach(
                task=label_of(axes, frames.tables),
                model=model,
                setting=setting_text(setting),
                method=method,
                seeds=len(cells),
                target_avg=statistics.fmean(avg_targets.values()),
                tokens_to_avg=finite_median(to_avg),
                seeds_to_avg=sum(map(math.isfinite, to_avg)),
                target_pass=statistics.fmean(pass_targets.values()) if pass_targets else None,
                tokens_to_pass=finite_median(to_pass),
                seeds_to_pass=sum(map(math.isfinite, to_pass)),
            )
        )
    return rows


def seed_scores(frames: Frames, cells: DataFrame, k: int | None) -> dict[int, float]:
    """Return the mean score of each seed."""
    if cells.empty:
        return {}
    means = frames.scores(cells, k).mean(axis=1).tolist()
    return dict(zip(cells["seed"].tolist(), means, strict=True))


def tokens_of_curves(curves: Curves, name: str, target: float) -> float:
    """Return the tokens that one run had sampled when a metric reached the target."""
    return tokens_until(values_by_step(curves, name), values_by_step(curves, TOKENS), target)


def values_by_step(curves: Curves, name: str) -> dict[int, float]:
    return {point.step: point.value for point in curves.get(name, [])}


def finite_median(tokens: Sequence[float]) -> float | None:
    """Return the median; None if it is infinite."""
    middle = statistics.median(tokens)
    if math.isinf(middle):
        return None
    return middle


# For people


def render_reaches(reached: Sequence[Reach], gain: float, how: str, width: int | None = None) -> str:
    """Return the rows as table, md, csv or json."""
    sections: dict[tuple[str, str], list[Reach]] = {}
    for each in reached:
        sections.setdefault((each.task, place_text(each.model, each.setting)), []).append(each)
    tables: list[Table] = []
    for (task, where), rows in sections.items():
        target = rows[0].target_pass
        pass_header = "tokens to Pass@K" if target is None else f"tokens to Pass@K {target:.3f}"
        avg_header = f"tokens to Avg@K {rows[0].target_avg:.3f}"
        header = ["method", avg_header, "seeds", "profile", pass_header, "seeds", "profile"]
        lines = [header, *map(reach_line, rows)]
        tables.append((f"{task}, {where}", lines, []))
    notes = [
        f"Targets, seed by seed: the final Avg@K of the baseline, and the base model's Pass@K + {gain:g}; headers have "
        "their means. Tokens: sampled until the first evaluation with that score, median over seeds (eval.every is the "
        "resolution); seeds: how many got there.",
        "Profile: the mean over r from 1 to 4 of the share of tables in which the method needs at most r times the "
        "tokens of the best one.",
    ]
    return render_document(reached, tables, notes, how, width)


def reach_line(each: Reach) -> list[str]:
    return [
        each.method,
        tokens_text(each.tokens_to_avg),
        f"{each.seeds_to_avg} of {each.seeds}",
        profile_text(each.profile_avg),
        tokens_text(each.tokens_to_pass),
        f"{each.seeds_to_pass} of {each.seeds}",
        profile_text(each.profile_pass),
    ]


def profile_text(profile: float | None) -> str:
    return "" if profile is None else f"{profile:.2f}"


def tokens_text(tokens: float | None) -> str:
    return NEVER if tokens is None else f"{tokens:,.0f}"
