"""How methods differ, and how surely: tests, ranks and the least difference that the experiment could have seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from harness.table.columns import MIXED, NEAR_BOUND, format_estimate, method_text
from harness.table.frames import (
    BASE_MODEL,
    Axes,
    Frames,
    check_comparable,
    done_cells,
    label_of,
    setting_text,
    with_base_models,
)
from harness.table.leaderboard import mixed_rows, place_text, scores_near_bound
from harness.table.render import (
    doubt_near_bound,
    render_document,
    ruleset_notes,
    trainer_notes,
    two_seeds,
    verdict_note,
)
from harness.table.statistics import (
    Estimate,
    Floats,
    clipped,
    crossed_p_value,
    detectable,
    difference_interval,
    iqm_interval,
    ranks,
    seeds_needed,
    share_interval,
    wins,
)
from harness.table.verdict import adjusted, p_values, significance, verdict
from harness.table.verified import mark_of_row

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pandas import DataFrame

ALL_TASKS = "all tasks"

SeedScores = dict[int, list[Floats]]  # of a method, by seed in order: the scores of the problems of each task


@dataclass(frozen=True)
class Comparison:
    """One method on one task, or on all, by one score; None where there are too few seeds for a number."""

    task: str
    model: str
    score: str  # Avg@K, or the headline's Pass@k
    method: str
    baseline: str
    mean: Estimate | None
    iqm: Estimate | None  # over the runs of all seeds, on all tasks
    seeds: int  # done by both the method and the baseline
    difference: Estimate | None  # to the baseline, paired by seed and problem, as are the following fields
    p: float | None
    p_holm: float | None  # adjusted for all methods that are compared with the baseline in this table
    improvement: Estimate | None  # the probability of scoring higher on a problem; equal counts as half
    detectable: float | None  # the least true difference that is significant with 80 % power
    rank_best: int | None  # the best rank that the paired intervals allow, and the worst
    rank_worst: int | None
    best: bool  # the highest mean, or not significantly below it
    verdict: str = ""  # wins, trades, loses or none, by both scores
    near_bound: bool = False  # both methods are so near 0 or 1 that the difference's interval may be too short
    seeds_needed: int | None = None  # with two seeds: the number at which such a difference is significant, if any
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


def scores_by_seed(frames: Frames, tasks: Sequence[DataFrame], ks: Sequence[int | None]) -> SeedScores:
    """Return the scores of a method by the seeds that are done on all of these tasks.

    `tasks`: its cells of each task, `ks`: the k of Pass@k there, None for Avg@K.
    """
    done_by_task = [done_cells(cells).set_index("seed", drop=False) for cells in tasks]
    shared_seeds = set(done_by_task[0].index)
    for cells in done_by_task:
        shared_seeds &= set(cells.index)
    seeds = sorted(shared_seeds)
    scores: SeedScores = {seed: [] for seed in seeds}
    if not seeds:
        return scores
    for cells, k in zip(done_by_task, ks, strict=True):
        x_SJ = frames.scores(cells.loc[seeds], k)
        for seed, x_J in zip(seeds, x_SJ, strict=True):
            scores[seed].append(x_J)
    return scores


def stacked(scores: SeedScores, seeds: Collection[int]) -> list[Floats]:
    """Return the scores of some of the seeds, as seed by problem for each task."""
    by_seed = [scores[seed] for seed in seeds]
    stacks = []
    for of_task in zip(*by_seed, strict=True):
        stacks.append(np.stack(of_task))
    return stacks


def paired_scores(ours: SeedScores, theirs: SeedScores) -> tuple[list[Floats], list[Floats]] | None:
    """Return both scores on the seeds that both have done; None where there are none."""
    shared = [seed for seed in ours if seed in theirs]
    if not shared:
        return None
    return stacked(ours, shared), stacked(theirs, shared)


def comparisons(frames: Frames, baseline: str, ks: Mapping[str, int]) -> list[Comparison]:
    """Return the comparisons of all tables and, where there are several tasks, of all of them together.

    `ks`: the K of the headline Pass@K, by evaluation task. The base model is compared as well, but not ranked.
    """
    frames = with_base_models(frames)
    mixed = mixed_rows(frames, baseline)
    results = []
    for label, tables in labeled_tables(frames):
        _, _, model, pairs = tables[0]
        by_score = {}
        for score, score_ks in scores_of_tables(tables, ks):
            by_score[score] = compare_tables(frames, tables, score_ks, baseline)
        of_average, of_headline = by_score.values()
        verdicts = {}
        for average, headline in zip(of_average, of_headline, strict=True):
            verdicts[average.method] = verdict(headline.significance, average.significance)
        for score, of_score in by_score.items():
            for result in of_score:
                sentences: dict[str, None] = {}  # in their order, each once
                for axes in tables:
                    sentences |= dict.fromkeys(mixed.get((result.method, axes), []))
                cells = frames.tables[tables[0]][result.method]
                first = cells.iloc[0]
                labeled = replace(
                    result,
                    task=label,
                    model=model,
                    score=score,
                    setting=setting_text(pairs),
                    verdict=verdicts[result.method],
                    trainer=first["trainer"] or None,
                    ruleset=first["ruleset"] or None,
                    checked=mark_of_row(done_cells(cells)["checked"]),
                    mixed=list(sentences),
                    options=first["options"],
                )
                results.append(labeled)
    return results


def labeled_tables(frames: Frames) -> list[tuple[str, list[Axes]]]:
    """Return each table with its label and, after those of one training task, all of them together."""
    by_training: dict[tuple[str, str, str], list[Axes]] = {}
    trained_tasks: dict[tuple[str, str], set[str]] = {}  # by model and setting
    for axes in frames.tables:
        trained_on, _, model, pairs = axes
        setting = setting_text(pairs)
        by_training.setdefault((trained_on, model, setting), []).append(axes)
        trained_tasks.setdefault((model, setting), set()).add(trained_on)
    labeled = []
    for (trained_on, model, setting), tables in by_training.items():
        for axes in tables:
            labeled.append((label_of(axes, frames.tables), [axes]))
        if len(tables) > 1:
            several = len(trained_tasks[model, setting]) > 1
            label = f"{ALL_TASKS} (trained on {trained_on})" if several else ALL_TASKS
            labeled.append((label, tables))
    return labeled


def scores_of_tables(tables: Sequence[Axes], ks: Mapping[str, int]) -> list[tuple[str, list[int | None]]]:
    """Return the two scores by name, with their k on each task."""
    of_pass: list[int | None] = [ks[evaluated] for _, evaluated, *_ in tables]
    same_k = len(set(of_pass)) == 1
    headline = f"Pass@{of_pass[0]}" if same_k else "Pass@k"
    return [("Avg@K", [None] * len(tables)), (headline, of_pass)]


def compare_tables(frames: Frames, tables: Sequence[Axes], ks: Sequence[int | None], baseline: str) -> list[Comparison]:
    """Return the comparisons of the methods that all these tables have, still without labels."""
    methods_by_table = [frames.tables[axes] for axes in tables]
    cells, scores = {}, {}
    for name in methods_by_table[0]:
        of_method = [methods[name] for methods in methods_by_table if name in methods]
        if len(of_method) == len(tables):
            cells[name] = of_method
            scores[name] = scores_by_seed(frames, of_method, ks)
    done = [name for name in scores if scores[name]]
    for name in done:  # compared with the first, since the baseline may not be done
        for ours, first in zip(cells[name], cells[done[0]], strict=True):
            check_comparable(frames, ours, first)
    return compare_scores(scores, baseline)


def compare_scores(scores: Mapping[str, SeedScores], baseline: str) -> list[Comparison]:
    """Return each method's comparison with the baseline, and its ranks among all trained methods."""
    base = scores.get(baseline)
    means: dict[str, Estimate] = {}
    differences: dict[str, Floats] = {}
    for name, ours in scores.items():
        if not ours:  # no seed is done
            continue
        means[name] = share_interval(pooled(stacked(ours, ours)))
        if base is None or name == baseline:
            continue
        x_SJ = paired_difference(ours, base)
        if x_SJ is None:
            continue
        differences[name] = x_SJ
    p_by_method = p_values(differences)
    p_adjusted = adjusted(p_by_method)
    trained = [name for name in means if name != BASE_MODEL]
    beats_MM = beats_matrix([scores[name] for name in trained])
    ranks_by_method = dict(zip(trained, ranks(beats_MM), strict=True))
    best = set()
    if trained:
        highest = int(np.argmax([means[name].mean for name in trained]))
        for name, is_beaten in zip(trained, beats_MM[highest], strict=True):
            if not is_beaten:
                best.add(name)
    results = []
    for name, ours in scores.items():
        x_SJ = differences.get(name)
        pair = None if base is None else paired_scores(ours, base)
        iqm = difference = least_detectable = needed = improvement = None
        if ours:
            iqm = clipped(iqm_interval(run_scores(stacked(ours, ours))), 0, 1)
        if pair is not None and name != baseline:
            improvement = probability_of_improvement(*pair)
        if x_SJ is not None:
            difference, least_detectable = difference_interval(x_SJ), detectable(x_SJ)
            if len(x_SJ) == 2:  # two seeds say little: docs/statistics.md
                needed = seeds_needed(x_SJ)
        rank_best, rank_worst = ranks_by_method.get(name, (None, None))
        results.append(
            Comparison(
                # The caller knows these three, and the verdict.
                task="",
                model="",
                score="",
                method=name,
                baseline=baseline,
                mean=means.get(name),
                iqm=iqm,
                seeds=0 if pair is None else len(pair[0][0]),
                difference=difference,
                p=p_by_method.get(name),
                p_holm=p_adjusted.get(name),
                improvement=improvement,
                detectable=least_detectable,
                rank_best=rank_best,
                rank_worst=rank_worst,
                ranked=len(trained),
                best=name in best,
                near_bound=pair is not None and x_SJ is not None and all_near_bound(*pair),
                seeds_needed=needed,
            )
        )
    return results


def paired_difference(ours: SeedScores, theirs: SeedScores) -> Floats | None:
    """Return the differences by seed and problem, of the seeds that both have done."""
    pair = paired_scores(ours, theirs)
    if pair is None:
        return None
    differences = []
    for ours_SJ, theirs_SJ in zip(*pair, strict=True):
        differences.append(ours_SJ - theirs_SJ)
    return pooled(differences)


def beats_matrix(scores: Sequence[SeedScores]) -> NDArray[np.bool_]:
    """Return which method (row) beats which (column)."""
    beats_MM = np.zeros((len(scores), len(scores)), dtype=bool)
    for row, ours in enumerate(scores):
        for column, theirs in enumerate(scores):
            beats_MM[row, column] = beats(ours, theirs)
    return beats_MM


def beats(ours: SeedScores, theirs: SeedScores) -> bool:
    """Return whether the 95 % interval of the difference lies above 0."""
    x_SJ = paired_difference(ours, theirs)
    if x_SJ is None:
        return False
    p = crossed_p_value(x_SJ)  # below 0.05 exactly where the 95 % interval excludes 0
    return p is not None and p < 0.05 and x_SJ.mean() > 0


def probability_of_improvement(ours: Sequence[Floats], theirs: Sequence[Floats]) -> Estimate:
    return share_interval(pooled(list(map(wins, ours, theirs))))


def all_near_bound(ours: Sequence[Floats], theirs: Sequence[Floats]) -> bool:
    """Return whether both methods are within a few problems of 0 or 1."""
    return scores_near_bound(pooled(ours)) and scores_near_bound(pooled(theirs))


def pooled(of_tasks: Sequence[Floats]) -> Floats:
    """Join the problems of all tasks, with weights that make the mean that of the tasks' means.

    The tasks are fixed, so differences between their levels do not count as variance of problems.
    """
    if len(of_tasks) == 1:
        return of_tasks[0]
    means = list(map(np.mean, of_tasks))
    sizes = [x_SJ.shape[1] for x_SJ in of_tasks]
    mean_size = sum(sizes) / len(sizes)
    weighted = []
    # With these weights the mean of each seed, too, is that of its tasks' means.
    for x_SJ, mean, size in zip(of_tasks, means, sizes, strict=True):
        weighted.append((x_SJ - mean) * (mean_size / size))
    return np.mean(means) + np.hstack(weighted)


def run_scores(of_tasks: Sequence[Floats]) -> Floats:
    """Return the score of each seed on each task."""
    return np.stack([x_SJ.mean(axis=1) for x_SJ in of_tasks], axis=1)


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
    return render_document(results, tables, comparison_notes(results), how, width)


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
    has_base_model = one_seed = near_bound = not_done = all_tasks = False
    mixed: dict[str, None] = {}  # sentences in their order, each once
    needed: dict[str, dict[str, int | None]] = {}
    for result in results:
        has_base_model |= result.method == BASE_MODEL
        one_seed |= result.seeds == 1
        near_bound |= result.near_bound
        not_done |= result.mean is None
        all_tasks |= result.task.startswith(ALL_TASKS)
        for why in result.mixed:
            mixed[f"{MIXED} {result.task}, {result.where}: {why}."] = None
        if result.seeds == 2 and result.p is not None:
            where = place_text(result.method, result.task, result.where)
            needed.setdefault(where, {})[result.score] = result.seeds_needed
    if has_base_model:
        notes.append(f"{BASE_MODEL}: the model before training; it has no rank and no part in Holm's adjustment.")
    notes += ruleset_notes((result.method, result.ruleset, result.checked) for result in results)
    notes += trainer_notes(result.trainer for result in results)
    notes += mixed
    if one_seed:
        notes.append("One seed cannot tell how much seeds differ: it gives no interval, no p-value, and any rank.")
    if needed:
        notes.append(two_seeds(needed))
    if near_bound:
        notes.append(doubt_near_bound(baseline))
    if len({result.method for result in results} - {BASE_MODEL}) < results[0].ranked:
        notes.append("Methods that are not selected count in Holm's adjustment and in the ranks, too.")
    if not_done:
        notes.append("Methods without a rank have no seed that is done.")
    if all_tasks:
        notes.append(f"{ALL_TASKS}: each task counts the same, for any number of problems.")
    return notes
