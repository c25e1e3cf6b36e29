"""How methods differ, and how surely: tests, ranks and the least difference that the experiment could have seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.config import setting_label
from harness.table.columns import NEAR_BOUND, format_estimate, method_text
from harness.table.frames import BASE_MODEL, Axes, Frames, check_comparable, done_cells, label_of, with_base_models
from harness.table.leaderboard import place_text
from harness.table.origins import mixed_rows
from harness.table.render import (
    TWO_SEEDS,
    doubt_near_bound,
    mixed_notes,
    render_document,
    ruleset_notes,
    trainer_notes,
    verdict_note,
)
from harness.table.scores import Scores, TableScores, Tasks, pooled, table_scores
from harness.table.statistics import (
    Estimate,
    clipped,
    crossed_p_value,
    detectable,
    difference_interval,
    iqm_interval,
    ranks,
    share_interval,
    wins,
)
from harness.table.verdict import significance, verdicts
from harness.table.verified import mark_of_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALL_TASKS = "all tasks"


@dataclass(frozen=True)
class Comparison:
    """One method on one task, or on all, by one score; None where there are too few seeds for a number."""

    task: str
    model: str
    score: str  # Avg@K, or the headline's Pass@k
    method: str
    baseline: str
    mean: Estimate | None
    iqm: Estimate | None = None  # over the runs of all seeds, on all tasks
    seeds: int = 0  # done by both the method and the baseline
    difference: Estimate | None = None  # to the baseline, paired by seed and problem, as are the following fields
    p: float | None = None
    p_holm: float | None = None  # adjusted for all methods that are compared with the baseline in this table
    improvement: Estimate | None = None  # the probability of scoring higher on a problem; equal counts as half
    detectable: float | None = None  # the least true difference that is significant with 80 % power
    rank_best: int | None = None  # the best rank that the paired intervals allow, and the worst
    rank_worst: int | None = None
    best: bool = False  # the highest mean, or not significantly below it
    verdict: str = ""  # wins, trades, loses or none, by both scores
    near_bound: bool = False  # both methods are so near 0 or 1 that the difference's interval may be too short
    setting: str = ""  # the values at the further axes of the matrix
    mixed: list[str] = field(default_factory=list)  # how its cells, or the baseline's, are not of one experiment
    experiment: str | None = None  # set if a table has rows of several
    ranked: int = 0  # the number of methods that have a rank in this table
    trainer: str | None = None  # of its cells (train.backend), if that is not our own
    ruleset: str | None = None  # published or tuned; docs/tune.md
    checked: str | None = None  # how far the row of a pack was verified
    options: str = ""  # the spec that tuning chose for the method

    @property
    def where(self) -> str:
        """The model and the setting, within which methods are compared."""
        return place_text(self.model, self.setting)

    @property
    def significance(self) -> int:
        """1 for a significant gain over the baseline, -1 for a significant loss, 0 for neither."""
        return 0 if self.difference is None else significance(self.difference.mean, self.p_holm)


def comparisons(frames: Frames, baseline: str, ks: Mapping[str, int]) -> list[Comparison]:
    """Return the comparisons of all tables and, where there are several tasks, of all of them together.

    `ks`: the K of the headline Pass@K, by evaluation task. The base model is compared as well, but not ranked.
    """
    frames = with_base_models(frames)
    mixed = mixed_rows(frames, baseline)
    results = []
    for label, tables in labeled_tables(frames):
        _, _, model, pairs = tables[0]
        methods = methods_of_tables(frames, tables)
        ks_of_scores = scores_of_tables(tables, ks)
        scores = {score: table_scores(frames, methods, of_tasks, baseline) for score, of_tasks in ks_of_scores.items()}
        check_all_alike(frames, methods, scores["Avg@K"].by_method)
        average, headline = scores.values()
        verdict_of = verdicts(headline, average)
        for score, of_score in scores.items():
            compared = compare_scores(methods, of_score)
            for method, numbers in compared.items():
                # In their order, each once.
                sentences = dict.fromkeys(chain.from_iterable(mixed.get((method, axes), []) for axes in tables))
                cells = frames.tables[tables[0]][method]
                first = cells.iloc[0]
                results.append(
                    Comparison(
                        task=label,
                        model=model,
                        score=score,
                        method=method,
                        baseline=baseline,
                        setting=setting_label(dict(pairs)),
                        verdict=verdict_of.get(method, ""),
                        trainer=first["trainer"] or None,
                        ruleset=first["ruleset"] or None,
                        checked=mark_of_row(done_cells(cells)["checked"]),
                        mixed=list(sentences),
                        options=first["options"],
                        **numbers,
                    )
                )
    return results


def labeled_tables(frames: Frames) -> list[tuple[str, list[Axes]]]:
    """Return each table with its label and, after those of one training task, all of them together."""
    by_training: dict[tuple[Any, ...], list[Axes]] = {}
    for axes in frames.tables:
        trained_on, _, *place = axes
        by_training.setdefault((trained_on, *place), []).append(axes)
    labeled = []
    for (trained_on, *place), tables in by_training.items():
        labeled += [(label_of(axes, frames.tables), [axes]) for axes in tables]
        if len(tables) > 1:
            several = [other for _, *other in by_training].count(place) > 1
            label = f"{ALL_TASKS} (trained on {trained_on})" if several else ALL_TASKS
            labeled.append((label, tables))
    return labeled


def scores_of_tables(tables: Sequence[Axes], ks: Mapping[str, int]) -> dict[str, list[int | None]]:
    """Return the k of both scores on each task, by the name of the score."""
    of_pass: list[int | None] = [ks[evaluated] for _, evaluated, *_ in tables]
    headline = f"Pass@{of_pass[0]}" if len(set(of_pass)) == 1 else "Pass@k"
    return {"Avg@K": [None] * len(tables), headline: of_pass}


def methods_of_tables(frames: Frames, tables: Sequence[Axes]) -> dict[str, Tasks]:
    """Return the cells in each table of the methods that all these tables have."""
    methods_by_table = [frames.tables[axes] for axes in tables]
    first, *others = methods_by_table
    of_all = [name for name in first if all(name in methods for methods in others)]
    return {name: [methods[name] for methods in methods_by_table] for name in of_all}


def check_all_alike(frames: Frames, methods: Mapping[str, Tasks], done: Collection[str]) -> None:
    """Refuse methods that answered other problems than the first that is done, since the baseline may not be done."""
    for name in done:
        for ours, first in zip(methods[name], methods[next(iter(done))], strict=True):
            check_comparable(frames, ours, first)


def compare_scores(methods: Collection[str], scores: TableScores) -> dict[str, dict[str, Any]]:
    """Return the numbers of each method's comparison with the baseline, with its ranks among all trained methods."""
    done = scores.by_method
    means = {name: share_interval(ours.x_SJ) for name, ours in done.items()}
    trained = [name for name in done if name != BASE_MODEL]
    beats_MM = beats_matrix([done[name] for name in trained])
    ranks_by_method = dict(zip(trained, ranks(beats_MM), strict=True))
    best = set()
    if trained:
        highest = int(np.argmax([means[name].mean for name in trained]))
        best = {name for name, is_beaten in zip(trained, beats_MM[highest], strict=True) if not is_beaten}
    compared = {}
    for name in methods:
        numbers: dict[str, Any] = {
            "mean": means.get(name),
            "p": scores.p.get(name),
            "p_holm": scores.p_holm.get(name),
            "ranked": len(trained),
            "best": name in best,
        }
        numbers["rank_best"], numbers["rank_worst"] = ranks_by_method.get(name, (None, None))
        if name in done:
            by_seed_and_task = np.stack([x_SJ.mean(axis=1) for x_SJ in done[name].of_tasks], axis=1)
            numbers["iqm"] = clipped(iqm_interval(by_seed_and_task), 0, 1)
        pair = scores.pairs.get(name)
        if pair is not None:
            numbers["seeds"] = len(pair.difference)
        if pair is not None and name != scores.baseline:
            x_SJ = pair.difference
            numbers["improvement"] = share_interval(pooled(list(map(wins, pair.ours, pair.theirs))))
            numbers["difference"], numbers["detectable"] = difference_interval(x_SJ), detectable(x_SJ)
            numbers["near_bound"] = pair.is_near_bound
        compared[name] = numbers
    return compared


def beats_matrix(scores: Sequence[Scores]) -> NDArray[np.bool_]:
    """Return which method (row) beats which (column): the 95 % interval of the difference lies above 0."""
    beats_MM = np.zeros((len(scores), len(scores)), dtype=bool)
    for row, ours in enumerate(scores):
        for column, theirs in enumerate(scores):
            if (pair := ours.paired(theirs)) is not None:
                p = crossed_p_value(pair.difference)  # below 0.05 exactly where the 95 % interval excludes 0
                beats_MM[row, column] = significance(pair.difference.mean(), p) > 0
    return beats_MM


# Showing

HEADER = ["method", "IQM", "difference", "p", "p, Holm", "verdict", "P(better)", "detectable", "rank", "shared seeds"]


def render_comparisons(results: Sequence[Comparison], how: str, width: int | None = None) -> str:
    sections: dict[tuple[str, str], list[Comparison]] = {}
    for result in results:
        sections.setdefault((place_text(result.task, result.where), result.score), []).append(result)
    tables = []
    for (where, score), section in sections.items():
        lines = [HEADER, *map(comparison_line, section)]
        tables.append((f"{where}: {score}", lines, ()))
    return render_document(tables, comparison_notes(results), how, width)


def comparison_line(result: Comparison) -> list[str]:
    name, rank = method_text(result.method, result.mixed, result.trainer), rank_text(result)
    if result.method == result.baseline:
        empty = [""] * 5  # the columns from p to detectable
        return [name, format_estimate(result.iqm), "baseline", *empty, rank, str(result.seeds)]
    mark = NEAR_BOUND if result.near_bound else ""
    return [
        name,
        format_estimate(result.iqm),
        f"{format_estimate(result.difference, '+')} {mark}".rstrip(),
        format_p(result.p),
        format_p(result.p_holm),
        result.verdict,
        format_estimate(result.improvement),
        "" if result.detectable is None else f"{result.detectable:.3f}",
        rank,
        str(result.seeds),
    ]


def rank_text(result: Comparison) -> str:
    if result.rank_best is None:
        return ""
    if result.rank_best == result.rank_worst:
        return f"{result.rank_best} of {result.ranked}"
    return f"{result.rank_best}-{result.rank_worst} of {result.ranked}"


def format_p(p: float | None) -> str:
    if p is None:
        return ""
    return f"{p:.3f}" if p >= 0.0005 else "<0.001"


def comparison_notes(results: Sequence[Comparison]) -> list[str]:
    baseline = results[0].baseline
    notes = [
        "± or [low, high]: 95 % interval over seeds and problems; of IQM, the mean of the middle half of the runs, "
        "over seeds.",
        f"difference: from {baseline}, paired by seed and problem, with the p-value of the same interval; Holm: "
        f"adjusted for all methods of the table that are compared with {baseline}.",
        verdict_note(results[0].baseline),
        f"P(better): the probability of scoring higher than {baseline} on a problem, where equal counts as half.",
        "detectable: about the least true difference that an experiment as large and as noisy finds with 80 % power.",
        "rank: the ranks that the paired intervals of all pairs allow; methods that do not differ significantly share "
        "ranks.",
    ]
    if any(result.method == BASE_MODEL for result in results):
        notes.append(f"{BASE_MODEL}: the model before training; it has no rank and no part in Holm's adjustment.")
    notes += [*ruleset_notes(results), *trainer_notes(results), *mixed_notes(results)]
    if any(result.seeds == 1 for result in results):
        notes.append("One seed cannot tell how much seeds differ: it gives no interval, no p-value, and any rank.")
    if any(result.seeds == 2 for result in results):
        notes.append(TWO_SEEDS)
    if any(result.near_bound for result in results):
        notes.append(doubt_near_bound(baseline))
    if len({result.method for result in results} - {BASE_MODEL}) < results[0].ranked:
        notes.append("Methods that are not selected count in Holm's adjustment and in the ranks, too.")
    if any(result.mean is None for result in results):
        notes.append("Methods without a rank have no seed that is done.")
    if any(result.task.startswith(ALL_TASKS) for result in results):
        notes.append(f"{ALL_TASKS}: each task counts the same, for any number of problems.")
    return notes
