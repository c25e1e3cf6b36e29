"""The scores of methods by seed and problem, each paired with the baseline's: what every estimate is computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from harness.cells.evaluations import powers_of_two
from harness.table.frames import BASE_MODEL, Frames, done_cells
from harness.table.statistics import Floats, crossed_p_value, holm, is_near_bound

if TYPE_CHECKING:
    from pandas import DataFrame

Tasks = Sequence["DataFrame"]  # the cells of a method on each of some tasks


@dataclass(frozen=True)
class Scores:
    """The scores of a method on one task, or on several: of each a matrix of seeds, in order, by problems."""

    seeds: list[int]
    of_tasks: list[Floats]

    @cached_property
    def x_SJ(self) -> Floats:
        return pooled(self.of_tasks)

    def of_seeds(self, seeds: Sequence[int]) -> list[Floats]:
        places = list(map(self.seeds.index, seeds))
        return [x_SJ[places] for x_SJ in self.of_tasks]

    def paired(self, other: Scores) -> Pair | None:
        """Return the scores of both methods on the seeds that both have done; None where there are none."""
        shared = [seed for seed in self.seeds if seed in other.seeds]
        return Pair(self.of_seeds(shared), other.of_seeds(shared)) if shared else None


@dataclass(frozen=True)
class Pair:
    """The scores of two methods with the same seeds, by task."""

    ours: list[Floats]
    theirs: list[Floats]

    @cached_property
    def difference(self) -> Floats:
        return pooled([ours_SJ - theirs_SJ for ours_SJ, theirs_SJ in zip(self.ours, self.theirs, strict=True)])

    @property
    def is_near_bound(self) -> bool:
        """Whether both methods are within a few problems of 0 or 1, where the interval of several seeds is in doubt."""
        scores = pooled(self.ours), pooled(self.theirs)
        are_near = [is_near_bound(float(x_SJ.mean()), x_SJ.shape[1]) for x_SJ in scores]
        return len(self.difference) > 1 and all(are_near)


def scores_of(frames: Frames, tasks: Tasks, ks: Sequence[int | None]) -> Scores | None:
    """Return the scores of a method on the seeds that are done on all of these tasks; None if there is none.

    `ks`: the k of Pass@k on each task, None for Avg@K.
    """
    done_by_task = [done_cells(cells).set_index("seed", drop=False) for cells in tasks]
    seeds = sorted(set.intersection(*(set(cells.index) for cells in done_by_task)))
    if not seeds:
        return None
    return Scores(seeds, [frames.scores(cells.loc[seeds], k) for cells, k in zip(done_by_task, ks, strict=True)])


@dataclass(frozen=True)
class TableScores:
    """One score of all methods of a table that have done a seed."""

    by_method: Mapping[str, Scores]
    baseline: str

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """The pair of each method and the baseline, with which the baseline makes one, too."""
        base = self.by_method.get(self.baseline)
        if base is None:
            return {}
        pairs = {method: scores.paired(base) for method, scores in self.by_method.items()}
        return {method: pair for method, pair in pairs.items() if pair is not None}

    @property
    def differences(self) -> dict[str, Floats]:
        """The difference of each other method from the baseline."""
        return {method: pair.difference for method, pair in self.pairs.items() if method != self.baseline}

    @cached_property
    def p(self) -> dict[str, float]:
        """The p-value of each method whose difference has one."""
        p_values = {method: crossed_p_value(x_SJ) for method, x_SJ in self.differences.items()}
        return {method: p for method, p in p_values.items() if p is not None}

    @cached_property
    def p_holm(self) -> dict[str, float]:
        """The p-values after Holm's correction; the base model, which all methods begin from, counts as no test."""
        tested = {method: p for method, p in self.p.items() if method != BASE_MODEL}
        return dict(zip(tested, holm(list(tested.values())), strict=True))


def table_scores(frames: Frames, methods: Mapping[str, Tasks], ks: Sequence[int | None], baseline: str) -> TableScores:
    """Return a score of methods, given the cells of each on some tasks."""
    scores = {method: scores_of(frames, tasks, ks) for method, tasks in methods.items()}
    return TableScores({method: each for method, each in scores.items() if each is not None}, baseline)


def scores_by_k(
    frames: Frames, methods: Mapping[str, DataFrame], k: int, baseline: str
) -> dict[int | None, TableScores]:
    """Return the scores of a table for Avg@K (None) and each k of Pass@k: powers of two, and the headline's."""
    done = [cells for cells in map(done_cells, methods.values()) if not cells.empty]
    powers: set[int] = set()
    if done:
        samples = int(frames.counts(done[0].iloc[:1], "samples")[0, 0])
        powers = set(powers_of_two(samples))
    cells = {method: [of_method] for method, of_method in methods.items()}
    return {each: table_scores(frames, cells, [each], baseline) for each in (None, *sorted(powers | {k}))}


def pooled(of_tasks: Sequence[Floats]) -> Floats:
    """Join the problems of all tasks, with weights that make the mean that of the tasks' means.

    The tasks are fixed, so differences between their levels do not count as variance of problems.
    """
    if len(of_tasks) == 1:
        return of_tasks[0]
    means = list(map(np.mean, of_tasks))
    sizes = [x_SJ.shape[1] for x_SJ in of_tasks]
    mean_size = sum(sizes) / len(sizes)
    # With these weights the mean of each seed, too, is that of its tasks' means.
    weighted = [(x_SJ - mean) * (mean_size / size) for x_SJ, mean, size in zip(of_tasks, means, sizes, strict=True)]
    return np.mean(means) + np.hstack(weighted)
