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
from harness.table.verdict import adjusted, collapsed_and_exploded, p_values, significance, verdict
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
    with_bases = with_base_models(frames)
    mixed = mixed_rows(with_bases, baseline)
    verdicts = {}
    for axes, methods in frames.tables.items():
        verdicts[axes] = verdicts_of_table(frames, methods, baseline, ks[axes[1]])
    rows = []
    for (method, axes), cells in with_bases.rows.items():
        # A baseline without any cell leaves no differences.
        baseline_cells = frames.tables[axes].get(baseline, cells.iloc[:0])
        _, evaluated, *_ = axes
        row = row_of(with_bases, cells, baseline_cells, baseline, ks[evaluated])
        label, sentences = label_of(axes, frames.tables), mixed.get((method, axes), [])
        decided = verdicts[axes].get(method, "")
        rows.append(dataclasses.replace(row, task=label, mixed=sentences, verdict=decided))
    return rows


def verdicts_of_table(frames: Frames, methods: Mapping[str, DataFrame], baseline: str, k: int) -> dict[str, str]:
    """Return the verdict on each method that shares a seed with the baseline."""
    if baseline not in methods:
        return {}
    by_score = []
    for score_k in (k, None):
        differences = {}
        for method, cells in methods.items():
            pairs = paired_cells(done_cells(cells), done_cells(methods[baseline]))
            if method != baseline and not pairs[0].empty:
                differences[method] = difference_SJ(frames, pairs, score_k)
        p_adjusted = adjusted(p_values(differences))
        signs = {}
        for method, x_SJ in differences.items():
            signs[method] = significance(x_SJ.mean(), p_adjusted.get(method))
        by_score.append(signs)
    of_headline, of_average = by_score
    return {method: verdict(of_headline[method], of_average[method]) for method in of_headline}


def mixed_rows(frames: Frames, baseline: str) -> dict[tuple[str, Axes], list[str]]:
    """Return how the cells behind a row are not of one experiment, by method and table; base models included."""
    mixed: dict[tuple[str, Axes], list[str]] = {}
    for axes, methods in frames.tables.items():
        for sentence, concerned in mixtures(methods, baseline):
            for method in concerned:
                mixed.setdefault((method, axes), []).append(sentence)
    return mixed


# Estimates


def row_of(frames: Frames, cells: DataFrame, baseline_cells: DataFrame, baseline: str, k: int) -> LeaderboardRow:
    """Return the row of some cells of one method, without its label."""
    first, done = cells.iloc[0], done_cells(cells)
    is_base_model = first["method"] == BASE_MODEL
    avg = entropy_initial = entropy_final = None
    if not done.empty:
        avg = share_interval(frames.scores(done, None))
        # Both are missing if another trainer trained the cells; a missing entropy alone was no number, and is shown so.
        trained_here = done[["entropy_first", "tokens"]].notna().any(axis=None)
        if trained_here or is_base_model:
            entropy_initial = geometric_interval(done["entropy_first"].to_numpy())
        if trained_here and not is_base_model:
            entropy_final = geometric_interval(done["entropy_last"].to_numpy())
    pairs = paired_cells(done, done_cells(baseline_cells))
    paired = not pairs[0].empty
    avg_difference = None
    if paired:
        avg_difference = difference_interval(difference_SJ(frames, pairs, None))
    passes, pass_differences = {}, {}
    for score_k in ks_of(frames, done, k):
        passes[score_k] = share_interval(frames.scores(done, score_k))
        if paired:
            pass_differences[score_k] = difference_interval(difference_SJ(frames, pairs, score_k))
    near_bound: list[str] = []
    needed: dict[str, int | None] = {}
    if paired and first["method"] != baseline:
        for name, of_score in (("Avg@K", None), (f"Pass@{k}", k)):
            if both_near_bound(frames, pairs, of_score):
                near_bound.append(name)
            if len(pairs[0]) == 2:  # two seeds say little: docs/statistics.md
                needed[name] = seeds_needed(difference_SJ(frames, pairs, of_score))
    collapsed = done.dropna(subset="collapsed").astype({"collapsed": int})
    collapsed_share = exploded_share = None
    if not is_base_model:  # which has no end
        collapsed_share, exploded_share = collapsed_and_exploded(done)
    return LeaderboardRow(
        method=first["method"],
        task=first["evaluated"],
        model=first["model"],
        k=k,
        baseline=baseline,
        avg_at_k=avg,
        pass_at_k=passes,
        entropy_initial=entropy_initial,
        entropy_final=entropy_final,
        delta_to_baseline=avg_difference,
        delta_pass_at_k=pass_differences,
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


def ks_of(frames: Frames, done: DataFrame, k: int) -> list[int]:
    """Return the powers of two up to the number of samples, and the headline's k."""
    if done.empty:
        return []
    samples = int(frames.counts(done.iloc[:1], "samples")[0, 0])
    powers = {2**i for i in range(samples.bit_length())}  # 1, 2, 4 ... up to the samples
    return sorted(powers | {k})


Pairs = tuple["DataFrame", "DataFrame"]  # cells of two methods with the same seeds, in the same order


def paired_cells(ours: DataFrame, theirs: DataFrame) -> Pairs:
    """Return the cells of the seeds that both methods have done."""
    ours, theirs = ours.set_index("seed", drop=False), theirs.set_index("seed", drop=False)
    # The order of a sum decides its last digits. The order of a set of integers keeps them as in all published tables.
    shared = list(set(ours["seed"].tolist()) & set(theirs["seed"].tolist()))
    return ours.loc[shared], theirs.loc[shared]


def difference_SJ(frames: Frames, pairs: Pairs, k: int | None) -> Floats:
    """Return the differences of two methods by seed and problem."""
    ours, theirs = pairs
    return frames.scores(ours, k) - frames.scores(theirs, k)


def both_near_bound(frames: Frames, pairs: Pairs, k: int | None) -> bool:
    """Return whether both methods are within a few problems of 0 or 1."""
    ours, theirs = pairs
    return scores_near_bound(frames.scores(ours, k)) and scores_near_bound(frames.scores(theirs, k))


def scores_near_bound(x_SJ: Floats) -> bool:
    return is_near_bound(float(x_SJ.mean()), x_SJ.shape[1])


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
