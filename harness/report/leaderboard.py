"""The table that a matrix is run for, read from MLflow alone; imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.base.errors import UserError
from harness.base.statistics import Estimate, crossed_interval, geometric_interval
from harness.record.made import by_another_source
from harness.report.read import Result, read, result_of


@dataclass(frozen=True)
class Expected:
    """A cell of the matrix, done or not."""

    method: str
    task: str  # that is trained on
    eval_tasks: Sequence[str]
    model: str
    seed: int
    cell: str
    sources: Mapping[str, str] | None = None  # present hashes of its components' source; None: nobody asks for it


@dataclass(frozen=True)
class Row:
    """One method, evaluated on one task, with one model. Estimates are None before the first seed is done."""

    method: str
    task: str
    model: str
    k: int  # of the headline Pass@k
    baseline: str
    avg_at_k: Estimate | None
    pass_at_k: dict[int, Estimate]
    entropy_initial: Estimate | None  # the geometric mean over seeds, as of entropy_final
    entropy_final: Estimate | None
    delta_to_baseline: Estimate | None  # of Avg@K, paired by seed and problem; None where no seed is done by both
    delta_pass_at_k: dict[int, Estimate]
    seeds_done: int
    seeds_expected: int
    flags: list[str] = field(default_factory=list)  # what a reader must know of the task's problems


@dataclass
class Entry:
    """A row in the making."""

    method: str
    trained_on: str
    task: str
    model: str
    expected: int = 0
    results: dict[int, Result] = field(default_factory=dict)  # by seed


def rows(uri: str, matrix: str, expected: Sequence[Expected], baseline: str, ks: Mapping[str, int]) -> list[Row]:
    """`ks`: the K of the headline Pass@K, by evaluation task."""
    return rows_of(entries_of(read(uri, matrix, {each.cell for each in expected}), expected, baseline), baseline, ks)


def entries_of(results: Mapping[str, dict[str, Result]], expected: Sequence[Expected], baseline: str) -> list[Entry]:
    """Returns each method with its results on each evaluation task, all on the same problems as the baseline's."""
    entries: dict[tuple[str, str, str, str], Entry] = {}
    for each in expected:
        for task in each.eval_tasks:
            key = (each.method, each.task, task, each.model)
            entry = entries.setdefault(key, Entry(*key))
            entry.expected += 1
            if each.cell in results:
                entry.results[each.seed] = marked(result_of(results[each.cell], task, each.cell), each)
    for entry in entries.values():
        check_comparable(entry, entries[baseline, entry.trained_on, entry.task, entry.model])
    return list(entries.values())


def rows_of(entries: Sequence[Entry], baseline: str, ks: Mapping[str, int]) -> list[Row]:
    theirs = {(e.trained_on, e.task, e.model): e for e in entries if e.method == baseline}
    return [
        row_of(e, theirs[e.trained_on, e.task, e.model], ks[e.task], label_of(e.trained_on, e.task, entries))
        for e in entries
    ]


def label_of(trained_on: str, task: str, entries: Sequence[Entry]) -> str:
    """Names a task, and what was trained on where that differs within the matrix."""
    several = len({entry.trained_on for entry in entries if entry.task == task}) > 1
    return f"{task} (trained on {trained_on})" if several else task


def marked(result: Result, expected: Expected) -> Result:
    """Returns a result with a flag if another source than the present one made it."""
    why = None if expected.sources is None else by_another_source(result.sources, expected.sources)
    return dataclasses.replace(result, flags=[*result.flags, why]) if why else result


def check_comparable(entry: Entry, baseline: Entry) -> None:
    """Without the same problems, and as many samples, no mean over seeds and no difference makes sense."""
    of_all = [(e.method, seed, result) for e in (baseline, entry) for seed, result in e.results.items()]
    for method, seed, result in of_all[1:]:
        first_method, first_seed, first = of_all[0]
        if result.problems != first.problems or result.right_JN.shape != first.right_JN.shape:
            raise UserError(
                f"{method} seed {seed} was not evaluated on the same problems and samples of {entry.task} as "
                f"{first_method} seed {first_seed}: {shape(result)} and {shape(first)}"
            )


def shape(result: Result) -> str:
    problems, samples = result.right_JN.shape
    return f"{problems} problems x {samples} samples beginning with {result.problems[0]!r}"


# Estimates


def row_of(entry: Entry, baseline: Entry, k: int, label: str) -> Row:
    results = list(entry.results.values())
    ks = ks_of(results, k)
    shared = entry.results.keys() & baseline.results.keys()
    pairs = [(entry.results[seed], baseline.results[seed]) for seed in shared]
    return Row(
        method=entry.method,
        task=label,
        model=entry.model,
        k=k,
        baseline=baseline.method,
        avg_at_k=mean(results, None) if results else None,
        pass_at_k={each: mean(results, each) for each in ks},
        entropy_initial=geometric_interval(np.array([r.entropy[0] for r in results])) if results else None,
        entropy_final=geometric_interval(np.array([r.entropy[1] for r in results])) if results else None,
        delta_to_baseline=difference(pairs, None) if pairs else None,
        delta_pass_at_k={each: difference(pairs, each) for each in ks if pairs},
        seeds_done=len(results),
        seeds_expected=entry.expected,
        flags=sorted({flag for result in results for flag in result.flags}),
    )


def ks_of(results: Sequence[Result], k: int) -> list[int]:
    """Powers of two up to the number of samples, and the headline's."""
    if not results:
        return []
    samples = results[0].right_JN.shape[1]
    return sorted({k} | {2**i for i in range(samples.bit_length())})


def mean(results: Sequence[Result], k: int | None) -> Estimate:
    return crossed_interval(np.array([result.scores(k) for result in results]))


def difference(pairs: Sequence[tuple[Result, Result]], k: int | None) -> Estimate:
    return crossed_interval(np.array([ours.scores(k) - theirs.scores(k) for ours, theirs in pairs]))
