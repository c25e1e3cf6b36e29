"""The table that a matrix is run for, read from MLflow alone; imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.base.statistics import (
    Estimate,
    Floats,
    crossed_interval,
    geometric_interval,
    mean_interval,
    pass_at_k,
)
from harness.config import told
from harness.record.made import by_another_source
from harness.report.board import Expected
from harness.report.read import Result, Results, read, result_of

BEFORE = "before training"  # the row of the model itself


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
    entropy_kept: Estimate | None = None  # that at the last step as a share of that at the first, as a geometric mean
    right_distinct: Estimate | None = None  # distinct right answers to a problem, over seeds and problems
    coverage: Estimate | None = None  # share of all right answers to a problem that were given, over seeds and problems
    # Means over the seeds, of what `Result` says.
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
    # The step at which each seed ended early, since its entropy was too low (stop.entropy_below); their last evaluation
    # counts as that of any other.
    collapsed: dict[int, int] = field(default_factory=dict)
    made_of: str | None = None  # the method with compositions written out; None where it names none
    experiment: str | None = None  # where a table holds rows of several

    @property
    def where(self) -> str:
        """Names the model and the setting, within which methods are compared."""
        return ", ".join([self.model, *filter(None, [told(self.setting)])])


@dataclass
class Entry:
    """A row in the making."""

    method: str
    trained_on: str
    task: str
    model: str
    expected: int = 0
    results: dict[int, Result] = field(default_factory=dict)  # by seed
    setting: dict[str, str] = field(default_factory=dict)
    made_of: str | None = None

    @property
    def axes(self) -> tuple[str, str, str, str]:
        """Returns all in which an entry and its baseline agree."""
        return self.trained_on, self.task, self.model, told(self.setting)


def rows(
    uri: str,
    matrix: str,
    expected: Sequence[Expected],
    baseline: str,
    ks: Mapping[str, int],
    *,
    before: bool = False,
) -> list[Row]:
    """`ks`: the K of the headline Pass@K, by evaluation task. `before`: with rows of the model before any training."""
    entries = entries_of(read(uri, matrix, {each.cell for each in expected}), expected, baseline)
    return rows_of(entries, baseline, ks, before=before)


def entries_of(results: Results, expected: Sequence[Expected], baseline: str) -> list[Entry]:
    """Returns each method with its results on each evaluation task, all on the same problems as the baseline's."""
    entries: dict[tuple[str, ...], Entry] = {}
    for each in expected:
        for task in each.eval_tasks:
            new = Entry(each.method, each.task, task, each.model, setting=each.setting)
            entry = entries.setdefault((each.method, *new.axes), new)
            entry.expected += 1
            entry.made_of = entry.made_of or each.made_of  # which a cell without a run may not know
            if each.cell in results:
                entry.results[each.seed] = marked(result_of(results[each.cell], task, each.cell), each)
    for entry in entries.values():
        theirs = entries.get((baseline, *entry.axes), entry)
        check_comparable(entry, theirs)
    return list(entries.values())


def rows_of(entries: Sequence[Entry], baseline: str, ks: Mapping[str, int], *, before: bool = False) -> list[Row]:
    theirs = {entry.axes: entry for entry in entries if entry.method == baseline}
    table = []
    for entry in [*(before_training(entries) if before else []), *entries]:
        # A baseline without any cell leaves no differences.
        other = theirs.get(entry.axes, dataclasses.replace(entry, method=baseline, results={}))
        row = row_of(entry, other, ks[entry.task], label_of(entry.trained_on, entry.task, entries))
        row = dataclasses.replace(row, **measures(entry))
        table.append(dataclasses.replace(row, entropy_final=None, entropy_kept=None) if entry.method == BEFORE else row)
    return table


def label_of(trained_on: str, task: str, entries: Sequence[Entry]) -> str:
    """Names a task, and what was trained on where that differs within the matrix."""
    several = len({entry.trained_on for entry in entries if entry.task == task}) > 1
    return f"{task} (trained on {trained_on})" if several else task


def marked(result: Result, expected: Expected) -> Result:
    """Returns a result with a flag if another source than the present one made it."""
    why = None if expected.sources is None else by_another_source(result.sources, expected.sources)
    return dataclasses.replace(result, flags=[*result.flags, why]) if why else result


def before_training(entries: Sequence[Entry]) -> list[Entry]:
    """Returns the evaluations before the first step as a method's. Within a seed all methods begin with the same
    answers, so that any of them will do."""
    found: dict[tuple[str, ...], Entry] = {}
    for entry in entries:
        base = found.setdefault(
            entry.axes, dataclasses.replace(entry, method=BEFORE, made_of=None, expected=0, results={})
        )
        base.expected = max(base.expected, entry.expected)
        for seed, result in entry.results.items():
            if result.before_JN is not None and seed not in base.results:
                # The first step's entropy is that of the model before its first update.
                ends = (result.entropy[0], result.entropy[0])
                base.results[seed] = Result(
                    result.problems,
                    result.before_JN,
                    ends,
                    result.flags,
                    result.sources,
                    right_distinct_J=result.before_right_distinct_J,
                    solutions_J=result.solutions_J,
                )
    return list(found.values())


def measures(entry: Entry) -> dict[str, Any]:
    results = list(entry.results.values())
    found: dict[str, Any] = {}
    found["right_distinct"] = over_problems([result.right_distinct_J for result in results])
    found["coverage"] = over_problems([result.coverage_J for result in results])
    for name in ("length", "distinct", "distinct_answers", "after_answer", "dropped", "hours", "tokens"):
        values = [getattr(result, name) for result in results]
        told = [value for value in values if value is not None]
        found[name] = mean_interval(np.array(told, dtype=float)) if told else None
    found["entropy_kept"] = entropy_kept([result.entropy for result in results])
    for name in ("device", "version"):
        found[name] = ", ".join(sorted({getattr(result, name) for result in results} - {""})) or None
    return found


def over_problems(of_seeds: Sequence[Floats | None]) -> Estimate | None:
    """Return the mean of a number that each seed has of each problem; None where some seed lacks it."""
    known = [values_J for values_J in of_seeds if values_J is not None]
    return crossed_interval(np.array(known, dtype=float)) if known and len(known) == len(of_seeds) else None


def entropy_kept(ends: Sequence[tuple[float, float]]) -> Estimate | None:
    """Returns the geometric mean of the shares, with its 95 % interval. A seed without entropy at an end has none."""
    kept = np.array(ends).reshape(-1, 2)
    kept = kept[(np.isfinite(kept) & (kept > 0)).all(axis=1)]
    return geometric_interval(kept[:, 1] / kept[:, 0]) if len(kept) else None


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
        setting=entry.setting,
        made_of=entry.made_of,
        collapsed={seed: result.collapsed for seed, result in entry.results.items() if result.collapsed is not None},
    )


def ks_of(results: Sequence[Result], k: int) -> list[int]:
    """Powers of two up to the number of samples, and the headline's."""
    if not results:
        return []
    samples = results[0].right_JN.shape[1]
    return sorted({k} | {2**i for i in range(samples.bit_length())})


def mean(results: Sequence[Result], k: int | None) -> Estimate:
    return crossed_interval(scores(results, k))


def difference(pairs: Sequence[tuple[Result, Result]], k: int | None) -> Estimate:
    ours, theirs = zip(*pairs, strict=True)
    return crossed_interval(scores(ours, k) - scores(theirs, k))


def scores(results: Sequence[Result], k: int | None) -> Floats:
    """Returns the scores of some seeds, seed by problem; all of them have as many samples."""
    right_SJ, samples = np.array([result.right_J for result in results]), results[0].right_JN.shape[1]
    return right_SJ / samples if k is None else pass_at_k(samples, right_SJ, k)
