"""The leaderboard: a row of estimates for each method, evaluation task, model and setting; imports no torch."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.config import setting_label
from harness.table.frames import (
    BASE_MODEL,
    CELL_MEASURES,
    EVALUATION_MEASURES,
    Frames,
    done_cells,
    label_of,
    with_base_models,
)
from harness.table.origins import mixed_rows
from harness.table.scores import TableScores, scores_by_k
from harness.table.statistics import (
    Estimate,
    Floats,
    clipped,
    crossed_interval,
    difference_interval,
    geometric_interval,
    mean_interval,
    share_interval,
)
from harness.table.verdict import collapsed_and_exploded, verdicts
from harness.table.verified import mark_of_row

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MEASURES = (*EVALUATION_MEASURES, *CELL_MEASURES)
SHARES = ("distinct", "distinct_answers", "after_answer", "dropped")  # measures that lie within 0 and 1


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
        return place_text(self.model, setting_label(self.setting))


def place_text(*parts: str) -> str:
    """Return the parts of a place that are not empty, as `countdown, tiny, train.lr=0.001`."""
    return ", ".join(filter(None, parts))


def leaderboard_rows(frames: Frames, baseline: str, ks: Mapping[str, int]) -> list[LeaderboardRow]:
    """Return a row for each method of each table, after one for the base model of the table.

    `ks`: the K of the headline Pass@K, by evaluation task.
    """
    frames = with_base_models(frames)
    mixed = mixed_rows(frames, baseline)
    scores = {axes: scores_by_k(frames, methods, ks[axes[1]], baseline) for axes, methods in frames.tables.items()}
    decided = {axes: verdicts(headline=by_k[ks[axes[1]]], average=by_k[None]) for axes, by_k in scores.items()}
    rows = []
    for (method, axes), cells in frames.rows.items():
        row = row_of(frames, cells, scores[axes], baseline, ks[axes[1]])
        label, sentences = label_of(axes, frames.tables), mixed.get((method, axes), [])
        rows.append(dataclasses.replace(row, task=label, mixed=sentences, verdict=decided[axes].get(method, "")))
    return rows


# Estimates


def row_of(
    frames: Frames, cells: DataFrame, scores: Mapping[int | None, TableScores], baseline: str, k: int
) -> LeaderboardRow:
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
    own = {each: of_table.by_method[method] for each, of_table in scores.items() if method in of_table.by_method}
    pairs = {each: of_table.pairs[method] for each, of_table in scores.items() if method in of_table.pairs}
    means = {each: share_interval(of_method.x_SJ) for each, of_method in own.items()}
    deltas = {each: difference_interval(pair.difference) for each, pair in pairs.items()}
    near_bound = []
    if method in scores[None].differences:
        near_bound = [name for each, name in ((None, "Avg@K"), (k, f"Pass@{k}")) if pairs[each].is_near_bound]
    passes = {each: mean for each, mean in means.items() if each is not None}
    pass_deltas = {each: delta for each, delta in deltas.items() if each is not None}
    collapsed = done.dropna(subset="collapsed").astype({"collapsed": int})
    collapsed_share, exploded_share = collapsed_and_exploded(done)  # the base model has no end
    return LeaderboardRow(
        method=method,
        task=first["evaluated"],
        model=first["model"],
        k=k,
        baseline=baseline,
        avg_at_k=means.get(None),
        pass_at_k=passes,
        entropy_initial=entropy_initial,
        entropy_final=entropy_final,
        delta_to_baseline=deltas.get(None),
        delta_pass_at_k=pass_deltas,
        seeds_done=len(done),
        seeds_expected=len(cells),
        flags=sorted(set(itertools.chain(*cells["flags"]))),
        setting=dict(first["setting"]),
        made_of=next(filter(None, cells["made_of"]), None),  # unknown for a cell without a run
        collapsed=collapsed.set_index("seed")["collapsed"].to_dict(),
        near_bound=near_bound,
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
    fields: dict[str, Any] = {name: measured_mean(done[name], 1 if name in SHARES else math.inf) for name in MEASURES}
    distinct_SJ = frames.counts(done, "right_distinct")
    fields["right_distinct"] = mean_over_problems(distinct_SJ, most=math.inf)
    fields["coverage"] = mean_over_problems(distinct_SJ / frames.counts(done, "solutions"), most=1)
    fields["entropy_kept"] = entropy_kept(done[["entropy_first", "entropy_last"]].to_numpy())
    for name in ("device", "version", "base_model"):
        known = {*done[name]} - {""}
        fields[name] = ", ".join(sorted(known)) if known else None
    return fields


def measured_mean(values: Series, most: float) -> Estimate | None:
    """Return the mean of a number from 0 to `most` over the seeds that have a value."""
    known = values.dropna()
    return None if known.empty else clipped(mean_interval(known.to_numpy()), 0, most)


def mean_over_problems(x_SJ: Floats, most: float) -> Estimate | None:
    """Return the mean of a number from 0 to `most` that each seed has of each problem; None where a seed lacks it."""
    if not len(x_SJ) or np.isnan(x_SJ).any():
        return None
    return clipped(crossed_interval(x_SJ), 0, most)


def entropy_kept(ends: Sequence[tuple[float, float]] | np.ndarray) -> Estimate | None:
    """Return the geometric mean of the shares, with its 95 % interval. A seed without a share is left out.

    A seed that ends at 0 keeps nothing, and has the share 0.
    """
    kept = np.array(ends).reshape(-1, 2)  # two columns, even without any seed
    kept = kept[np.isfinite(kept).all(axis=1) & (kept[:, 0] > 0)]
    if not len(kept):
        return None
    return geometric_interval(kept[:, 1] / kept[:, 0])
