"""The leaderboard: a row of estimates for each method, evaluation task, model and setting; imports no torch."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.table.frames import (
    BASE_MODEL,
    Axes,
    Frames,
    done_cells,
    label_of,
    setting_text,
    with_base_models,
)
from harness.table.origins import mixtures
from harness.table.statistics import (
    Estimate,
    Floats,
    clipped,
    crossed_interval,
    difference_interval,
    geometric_interval,
    is_near_bound,
    mean_interval,
    seeds_needed,
    share_interval,
)
from harness.table.verdict import DifferenceTests, collapsed_and_exploded, verdicts
from harness.table.verified import mark_of_row

if TYPE_CHECKING:
    from pandas import DataFrame, Series

SHARES = ("distinct", "distinct_answers", "after_answer", "dropped")  # measures that lie within 0 and 1
MEASURES = ("length", "distinct", "distinct_answers", "after_answer", "dropped", "hours", "tokens")


@dataclass(frozen=True)
class LeaderboardRow:
    """One method, evaluated on one task, with one model; estimates are None before the first seed is done.

    `--columns`, `--sort`, csv, json and Python name their columns by these fields.
    """

    method: str
    task: str  # of the evaluation
    model: str
    k: int  # of the headline Pass@k
    baseline: str
    avg_at_k: Estimate | None
    pass_at_k: dict[int, Estimate]
    entropy_initial: Estimate | None  # the geometric mean over seeds, as of entropy_final
    entropy_final: Estimate | None
    delta_to_baseline: Estimate | None  # of Avg@K, paired by seed and problem; None if no seed is done by both
    delta_pass_at_k: dict[int, Estimate]
    seeds_done: int
    seeds_expected: int
    flags: list[str] = field(default_factory=list)  # of the problems, and of another source than the present one
    entropy_kept: Estimate | None = None  # at the last step, as a share of the first step; a geometric mean
    right_distinct: Estimate | None = None  # distinct right answers to a problem, over seeds and problems
    coverage: Estimate | None = None  # share of all right answers to a problem that were given, over seeds and problems
    # Means over the seeds, of the columns of `frames`.
    length: Estimate | None = None
    distinct: Estimate | None = None
    distinct_answers: Estimate | None = None
    after_answer: Estimate | None = None
    dropped: Estimate | None = None
    hours: Estimate | None = None  # of `device`
    tokens: Estimate | None = None
    device: str | None = None
    version: str | None = None
    setting: dict[str, str] = field(default_factory=dict)  # its value at each further axis of the matrix
    # The step at which each seed ended early, since its entropy was too low (stop.entropy_below). Its last evaluation
    # counts like any other.
    collapsed: dict[int, int] = field(default_factory=dict)
    base_model: str | None = None  # the first digits of the digest of the model that its cells began from
    mixed: list[str] = field(default_factory=list)  # how its cells, or the baseline's, are not of one experiment
    made_of: str | None = None  # the method with compositions written out; None if it contains none
    experiment: str | None = None  # set if a table has rows of several
    # Scores at which both methods are so near 0 or 1 that the interval of the difference may be too short.
    near_bound: list[str] = field(default_factory=list)
    # By score, with two seeds: the number of seeds at which a difference as large as the present one is significant;
    # None: no number.
    seeds_needed: dict[str, int | None] = field(default_factory=dict)
    ruleset: str | None = None  # published or tuned; docs/tune.md
    collapsed_share: float | None = None  # of the seeds, by the definition in `verdict`
    exploded_share: float | None = None
    checked: str | None = None  # of a row of a pack: reported, judged again or replayed
    trainer: str | None = None  # of its cells (train.backend), if that is not our own
    verdict: str = ""  # wins, trades, loses or none
    options: str = ""  # the spec that tuning chose for the method

    @property
    def where(self) -> str:
        """The model and the setting, within which methods are compared."""
        return place_text(self.model, setting_text(tuple(self.setting.items())))


def place_text(*parts: str) -> str:
    """Return the parts of a place that are not empty, as `countdown, tiny, train.lr=0.001`."""
    return ", ".join(filter(None, parts))


def leaderboard_rows(frames: Frames, baseline: str, ks: Mapping[str, int]) -> list[LeaderboardRow]:
    """Return a row for each method of each table, after one for the base model of the table.

    `ks`: the K of the headline Pass@K, by evaluation task.
    """
    frames = with_base_models(frames)
    mixed = mixed_rows(frames, baseline)
    scores, verdicts_of = {}, {}
    for axes, methods in frames.tables.items():
        k = ks[axes[1]]
        by_k = scores_by_k(frames, methods, k)
        headline, average = (DifferenceTests(differences(by_k.get(each, {}), baseline)) for each in (k, None))
        scores[axes], verdicts_of[axes] = by_k, verdicts(headline, average)
    rows = []
    for (method, axes), cells in frames.rows.items():
        row = row_of(frames, cells, scores[axes], baseline, ks[axes[1]])
        label, sentences = label_of(axes, frames.tables), mixed.get((method, axes), [])
        decided = verdicts_of[axes].get(method, "")
        rows.append(dataclasses.replace(row, task=label, mixed=sentences, verdict=decided))
    return rows


def mixed_rows(frames: Frames, baseline: str) -> dict[tuple[str, Axes], list[str]]:
    """Return how the cells behind a row are not of one experiment, by method and table; base models included."""
    mixed: dict[tuple[str, Axes], list[str]] = {}
    for axes, methods in frames.tables.items():
        for sentence, concerned in mixtures(methods, baseline):
            for method in concerned:
                mixed.setdefault((method, axes), []).append(sentence)
    return mixed


# Scores


@dataclass(frozen=True)
class Scores:
    """The scores of a method on one task, or on several: of each a matrix of seeds, in order, by problems."""

    seeds: list[int]
    of_tasks: list[Floats]

    def of_seeds(self, seeds: Sequence[int]) -> list[Floats]:
        places = list(map(self.seeds.index, seeds))
        return [x_SJ[places] for x_SJ in self.of_tasks]


def scores_of(frames: Frames, tasks: Sequence[DataFrame], ks: Sequence[int | None]) -> Scores | None:
    """Return the scores of a method on the seeds that are done on all of these tasks; None if there is none.

    `tasks`: its cells of each task, `ks`: the k of Pass@k there, None for Avg@K.
    """
    done_by_task = [done_cells(cells).set_index("seed", drop=False) for cells in tasks]
    seeds = sorted(set.intersection(*(set(cells.index) for cells in done_by_task)))
    if not seeds:
        return None
    return Scores(seeds, [frames.scores(cells.loc[seeds], k) for cells, k in zip(done_by_task, ks, strict=True)])


ScoresByK = dict[int | None, dict[str, Scores]]  # of one table, by the k of Pass@k and method; None for Avg@K


def scores_by_k(frames: Frames, methods: Mapping[str, DataFrame], k: int) -> ScoresByK:
    """Return the scores of a table's methods by each k that it shows: powers of two, and the headline's."""
    done = [cells for cells in map(done_cells, methods.values()) if not cells.empty]
    if not done:
        return {}
    samples = int(frames.counts(done[0].iloc[:1], "samples")[0, 0])
    powers = {2**i for i in range(samples.bit_length())}  # 1, 2, 4 ... up to the samples
    by_k: ScoresByK = {}
    for each in (None, *sorted(powers | {k})):
        of_methods = {method: scores_of(frames, [cells], [each]) for method, cells in methods.items()}
        by_k[each] = {method: scores for method, scores in of_methods.items() if scores is not None}
    return by_k


def paired(ours: Scores, theirs: Scores | None) -> tuple[list[Floats], list[Floats]] | None:
    """Return the scores of two methods on the seeds that both have done; None where there are none."""
    shared = [] if theirs is None else [seed for seed in ours.seeds if seed in theirs.seeds]
    if theirs is None or not shared:
        return None
    return ours.of_seeds(shared), theirs.of_seeds(shared)


def difference(ours: Scores, theirs: Scores | None) -> Floats | None:
    """Return the differences by seed and problem, of the seeds that both have done."""
    pair = paired(ours, theirs)
    if pair is None:
        return None
    return pooled([ours_SJ - theirs_SJ for ours_SJ, theirs_SJ in zip(*pair, strict=True)])


def differences(scores: Mapping[str, Scores], baseline: str) -> dict[str, Floats]:
    """Return the difference of each method that shares a seed with the baseline."""
    by_method = {}
    for method, ours in scores.items():
        x_SJ = difference(ours, scores.get(baseline))
        if method != baseline and x_SJ is not None:
            by_method[method] = x_SJ
    return by_method


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


def both_near_bound(ours: Scores, theirs: Scores | None) -> bool:
    """Return whether two methods are within a few problems of 0 or 1."""
    pair = paired(ours, theirs)
    if pair is None:
        return False
    return all(is_near_bound(float(x_SJ.mean()), x_SJ.shape[1]) for x_SJ in map(pooled, pair))


# Estimates


def row_of(frames: Frames, cells: DataFrame, scores: ScoresByK, baseline: str, k: int) -> LeaderboardRow:
    """Return the row of some cells of one method, without its label."""
    first, done = cells.iloc[0], done_cells(cells)
    is_base_model, method = first["method"] == BASE_MODEL, first["method"]
    entropy_initial = entropy_final = None
    if not done.empty:
        # Both are missing if another trainer trained the cells; a missing entropy alone was no number, and is shown so.
        trained_here = done[["entropy_first", "tokens"]].notna().any(axis=None)
        if trained_here or is_base_model:
            entropy_initial = geometric_interval(done["entropy_first"].to_numpy())
        if trained_here and not is_base_model:
            entropy_final = geometric_interval(done["entropy_last"].to_numpy())
    means: dict[int | None, Estimate] = {}
    deltas: dict[int | None, Estimate] = {}
    near_bound: list[str] = []
    needed: dict[str, int | None] = {}
    for score_k, by_method in scores.items():
        ours, theirs = by_method.get(method), by_method.get(baseline)
        if ours is None:
            continue
        means[score_k] = share_interval(pooled(ours.of_tasks))
        x_SJ = difference(ours, theirs)
        if x_SJ is None:
            continue
        deltas[score_k] = difference_interval(x_SJ)
        if method == baseline or score_k not in (k, None):
            continue
        name = "Avg@K" if score_k is None else f"Pass@{k}"
        if both_near_bound(ours, theirs):
            near_bound.append(name)
        if len(x_SJ) == 2:  # two seeds say little: docs/statistics.md
            needed[name] = seeds_needed(x_SJ)
    collapsed = done.dropna(subset="collapsed").astype({"collapsed": int})
    collapsed_share = exploded_share = None
    if not is_base_model:  # which has no end
        collapsed_share, exploded_share = collapsed_and_exploded(done)
    return LeaderboardRow(
        method=method,
        task=first["evaluated"],
        model=first["model"],
        k=k,
        baseline=baseline,
        avg_at_k=means.pop(None, None),
        pass_at_k=means,
        entropy_initial=entropy_initial,
        entropy_final=entropy_final,
        delta_to_baseline=deltas.pop(None, None),
        delta_pass_at_k=deltas,
        seeds_done=len(done),
        seeds_expected=len(cells),
        flags=sorted(set(itertools.chain(*cells["flags"]))),
        setting=dict(first["setting"]),
        made_of=next(filter(None, cells["made_of"]), None),  # unknown for a cell without a run
        collapsed=collapsed.set_index("seed")["collapsed"].to_dict(),
        near_bound=near_bound,
        seeds_needed=needed,
        ruleset=first["ruleset"] or None,
        collapsed_share=collapsed_share,
        exploded_share=exploded_share,
        checked=mark_of_row(done["checked"]),
        trainer=first["trainer"] or None,
        options=first["options"],
        **measures(frames, done),
    )


def measures(frames: Frames, done: DataFrame) -> dict[str, Any]:
    """Return the fields of a row that are not scores."""
    fields: dict[str, Any] = {}
    for name in MEASURES:
        fields[name] = measured_mean(done[name], is_share=name in SHARES)
    distinct_SJ = frames.counts(done, "right_distinct")
    fields["right_distinct"] = mean_over_problems(distinct_SJ, most=math.inf)
    fields["coverage"] = mean_over_problems(distinct_SJ / frames.counts(done, "solutions"), most=1)
    fields["entropy_kept"] = entropy_kept(done[["entropy_first", "entropy_last"]].to_numpy())
    for name in ("device", "version", "base_model"):
        known = {*done[name]} - {""}
        fields[name] = ", ".join(sorted(known)) if known else None
    return fields


def measured_mean(values: Series, *, is_share: bool) -> Estimate | None:
    """Return the mean over the seeds that have a value."""
    known = values.dropna()
    if known.empty:
        return None
    estimate = mean_interval(known.to_numpy())
    if is_share:
        return clipped(estimate, 0, 1)
    return estimate


def mean_over_problems(x_SJ: Floats, most: float) -> Estimate | None:
    """Return the mean of a number from 0 to `most` that each seed has of each problem; None where a seed lacks it."""
    if not len(x_SJ) or np.isnan(x_SJ).any():
        return None
    return clipped(crossed_interval(x_SJ), 0, most)


def entropy_kept(ends: Sequence[tuple[float, float]] | np.ndarray) -> Estimate | None:
    """Return the geometric mean of the shares, with its 95 % interval. A seed without entropy at an end has none."""
    kept = np.array(ends).reshape(-1, 2)  # two columns, even without any seed
    is_usable = np.isfinite(kept) & (kept > 0)
    kept = kept[is_usable.all(axis=1)]
    if not len(kept):
        return None
    return geometric_interval(kept[:, 1] / kept[:, 0])
