"""The table that a matrix is run for, read from MLflow alone; imports no torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.cells.provenance import by_another_source
from harness.config import told
from harness.statistics import (
    Estimate,
    Floats,
    crossed_interval,
    difference_interval,
    geometric_interval,
    is_near_bound,
    mean_interval,
    pass_at_k,
    seeds_needed,
    share_interval,
    within,
)
from harness.table.board import Expected
from harness.table.origins import mixtures
from harness.table.read import Result, Results, read, result_of

SHARES = ("distinct", "distinct_answers", "after_answer", "dropped")  # measures that lie within 0 and 1
BASE_MODEL = "base model"  # the row of the model before any training

Axes = tuple[str, str, str, str]  # training task, evaluation task, model, setting: methods are compared within them


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
    base_model: str | None = None  # the first digits of the digest of what its cells began from
    mixed: list[str] = field(default_factory=list)  # how its cells, or the baseline's, are not of one experiment
    made_of: str | None = None  # the method with compositions written out; None where it names none
    experiment: str | None = None  # where a table holds rows of several
    near_bound: list[str] = field(default_factory=list)  # scores of which both methods are so near 0 or 1 that the
    # interval of the difference may be too short
    # By score, with two seeds: how many would tell a difference as large as the present one from 0; None: no number.
    seeds_needed: dict[str, int | None] = field(default_factory=dict)

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
    def axes(self) -> Axes:
        """Returns all in which an entry and its baseline agree."""
        return self.trained_on, self.task, self.model, told(self.setting)


def rows(
    uri: str,
    matrix: str,
    expected: Sequence[Expected],
    baseline: str,
    ks: Mapping[str, int],
) -> list[Row]:
    """`ks`: the K of the headline Pass@K, by evaluation task."""
    entries = entries_of(read(uri, matrix, {each.cell for each in expected}), expected, baseline)
    return rows_of(entries, baseline, ks)


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


def rows_of(entries: Sequence[Entry], baseline: str, ks: Mapping[str, int]) -> list[Row]:
    """Return a row for each entry, after one for the base model of each table."""
    theirs = {entry.axes: entry for entry in entries if entry.method == baseline}
    table, mixed = [], mixed_of(entries, theirs)
    for entry in with_base_models(entries):
        # A baseline without any cell leaves no differences.
        other = theirs.get(entry.axes, dataclasses.replace(entry, method=baseline, results={}))
        row = row_of(entry, other, ks[entry.task], label_of(entry.trained_on, entry.task, entries))
        row = dataclasses.replace(row, **measures(entry), mixed=mixed.get((entry.method, entry.axes), []))
        if entry.method == BASE_MODEL:
            row = dataclasses.replace(row, entropy_final=None, entropy_kept=None)
        table.append(row)
    return table


def mixed_of(entries: Sequence[Entry], baselines: Mapping[Axes, Entry]) -> dict[tuple[str, Axes], list[str]]:
    """Return how the cells behind a row are not of one experiment, by method and table."""
    tables: dict[Axes, dict[str, dict[int, Result]]] = {}
    for entry in with_base_models(entries):
        tables.setdefault(entry.axes, {})[entry.method] = entry.results
    found: dict[tuple[str, Axes], list[str]] = {}
    for axes, here in tables.items():
        methods = {method: results for method, results in here.items() if method != BASE_MODEL}
        baseline = baselines[axes].results if axes in baselines else {}
        for sentence, concerned in mixtures(methods, here, baseline):
            for method in concerned:
                found.setdefault((method, axes), []).append(sentence)
    return found


def label_of(trained_on: str, task: str, entries: Sequence[Entry]) -> str:
    """Names a task, and what was trained on where that differs within the matrix."""
    several = len({entry.trained_on for entry in entries if entry.task == task}) > 1
    return f"{task} (trained on {trained_on})" if several else task


def marked(result: Result, expected: Expected) -> Result:
    """Returns a result with a flag if another source than the present one made it."""
    why = None if expected.sources is None else by_another_source(result.sources, expected.sources)
    return dataclasses.replace(result, flags=[*result.flags, why]) if why else result


def with_base_models(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, with the base model before the first method of each table as if it were a method.

    A table without any evaluation before training has no base model.
    """
    bases = base_models(entries)
    table = []
    for entry in entries:
        base = bases.pop(entry.axes, None)
        table += [base, entry] if base is not None and base.results else [entry]
    return table


def base_models(entries: Sequence[Entry]) -> dict[Axes, Entry]:
    """Return the evaluations before the first step as a method's, for each table.

    Within a seed all methods begin with the same answers, so the first that is done counts.
    """
    found: dict[Axes, Entry] = {}
    for entry in entries:
        base = found.setdefault(
            entry.axes, dataclasses.replace(entry, method=BASE_MODEL, made_of=None, expected=0, results={})
        )
        base.expected = max(base.expected, entry.expected)
        for seed, result in entry.results.items():
            if result.before_JN is not None and seed not in base.results:
                base.results[seed] = before_training(result, result.before_JN)
    return found


def before_training(result: Result, right_JN: np.ndarray) -> Result:
    """Return the result of the base model that a cell began from, by its answers."""
    return Result(
        result.problems,
        right_JN,
        # The first step's entropy is that of the model before its first update.
        entropy=(result.entropy[0], result.entropy[0]),
        flags=result.flags,
        sources=result.sources,
        right_distinct_J=result.before_right_distinct_J,
        solutions_J=result.solutions_J,
        version=result.version,
        base_model=result.base_model,
        harness=result.harness,
    )


def measures(entry: Entry) -> dict[str, Any]:
    results = list(entry.results.values())
    found: dict[str, Any] = {}
    found["right_distinct"] = over_problems([result.right_distinct_J for result in results], most=math.inf)
    found["coverage"] = over_problems([result.coverage_J for result in results], most=1)
    for name in ("length", "distinct", "distinct_answers", "after_answer", "dropped", "hours", "tokens"):
        values = [getattr(result, name) for result in results]
        told = [value for value in values if value is not None]
        estimate = mean_interval(np.array(told, dtype=float)) if told else None
        found[name] = within(estimate, 0, 1) if estimate and name in SHARES else estimate
    found["entropy_kept"] = entropy_kept([result.entropy for result in results])
    for name in ("device", "version", "base_model"):
        found[name] = ", ".join(sorted({getattr(result, name) for result in results} - {""})) or None
    return found


def over_problems(of_seeds: Sequence[Floats | None], most: float) -> Estimate | None:
    """Return the mean of a number from 0 to `most` that each seed has of each problem; None where a seed lacks it."""
    known = [values_J for values_J in of_seeds if values_J is not None]
    if not known or len(known) < len(of_seeds):
        return None
    return within(crossed_interval(np.array(known, dtype=float)), 0, most)


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
    scored = {"Avg@K": None, f"Pass@{k}": k} if pairs and entry is not baseline else {}
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
        near_bound=[name for name, each in scored.items() if near_bound(pairs, each)],
        seeds_needed={name: seeds_needed(paired(pairs, each)) for name, each in scored.items() if len(pairs) == 2},
    )


def ks_of(results: Sequence[Result], k: int) -> list[int]:
    """Powers of two up to the number of samples, and the headline's."""
    if not results:
        return []
    samples = results[0].right_JN.shape[1]
    return sorted({k} | {2**i for i in range(samples.bit_length())})


def mean(results: Sequence[Result], k: int | None) -> Estimate:
    return share_interval(scores(results, k))


def difference(pairs: Sequence[tuple[Result, Result]], k: int | None) -> Estimate:
    return difference_interval(paired(pairs, k))


def paired(pairs: Sequence[tuple[Result, Result]], k: int | None) -> Floats:
    """Return the differences of two methods by seed and problem."""
    ours, theirs = zip(*pairs, strict=True)
    return scores(ours, k) - scores(theirs, k)


def near_bound(pairs: Sequence[tuple[Result, Result]], k: int | None) -> bool:
    """Return whether both methods of the pairs are within a few problems of 0 or 1."""
    sides = [scores(side, k) for side in zip(*pairs, strict=True)]
    return all(is_near_bound(float(x_SJ.mean()), x_SJ.shape[1]) for x_SJ in sides)


def scores(results: Sequence[Result], k: int | None) -> Floats:
    """Returns the scores of some seeds, seed by problem; all of them have as many samples."""
    right_SJ, samples = np.array([result.right_J for result in results]), results[0].right_JN.shape[1]
    return right_SJ / samples if k is None else pass_at_k(samples, right_SJ, k)
