"""The table that a matrix is run for, read from MLflow alone; imports no torch."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.base import files
from harness.base.statistics import Estimate, Floats, crossed_interval, mean_interval, pass_at_k
from harness.config import UserError, one_of
from harness.record.tracking import store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PAGE = 1000  # runs that MLflow gives at a time, at most
BETTER, WORSE = "▲", "▼"
FLAG = " †"


@dataclass(frozen=True)
class Expected:
    """A cell of the matrix, done or not."""

    method: str
    task: str  # that is trained on
    eval_tasks: Sequence[str]
    model: str
    seed: int
    cell: str


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
    entropy_initial: Estimate | None
    entropy_final: Estimate | None
    delta_to_baseline: Estimate | None  # of Avg@K, paired by seed and problem; None where no seed is done by both
    delta_pass_at_k: dict[int, Estimate]
    seeds_done: int
    seeds_expected: int
    flags: list[str] = field(default_factory=list)  # what a reader must know of the task's problems


@dataclass(frozen=True)
class Result:
    """What one cell has to say about one task."""

    problems: list[str]
    right_JN: np.ndarray
    entropy: tuple[float, float]  # at the first and at the last training step
    flags: list[str]

    def scores(self, k: int | None) -> Floats:
        """Of each problem: Avg@K over all samples (k is None) or Pass@k."""
        if k is None:
            return self.right_JN.mean(axis=1)
        return pass_at_k(self.right_JN.shape[1], self.right_JN.sum(axis=1), k)


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
    results = read(uri, matrix, {each.cell for each in expected})
    entries: dict[tuple[str, str, str, str], Entry] = {}
    trainings: dict[str, set[str]] = {}
    for each in expected:
        for task in each.eval_tasks:
            key = (each.method, each.task, task, each.model)
            entry = entries.setdefault(key, Entry(*key))
            entry.expected += 1
            if each.cell in results:
                entry.results[each.seed] = result_of(results[each.cell], task, each.cell)
            trainings.setdefault(task, set()).add(each.task)
    table = []
    for entry in entries.values():
        theirs = entries[baseline, entry.trained_on, entry.task, entry.model]
        check_comparable(entry, theirs)
        label = entry.task if len(trainings[entry.task]) == 1 else f"{entry.task} (trained on {entry.trained_on})"
        table.append(row_of(entry, theirs, ks[entry.task], label))
    return table


# Reading MLflow


def done_runs(client: MlflowClient, matrix: str, uri: str) -> dict[str, Run]:
    """By cell; the first where there is more than one, as `sync` has it."""
    experiment = client.get_experiment_by_name(matrix)
    if experiment is None or experiment.lifecycle_stage != "active":
        raise UserError(
            f"the MLflow store at {uri} has no experiment {matrix!r}; `entrobench run` or `entrobench sync` makes it"
        )
    runs: dict[str, Run] = {}
    token = None
    while True:
        page = client.search_runs(
            [experiment.experiment_id],
            "tags.status = 'done'",
            max_results=PAGE,
            order_by=["attributes.start_time ASC"],
            page_token=token,
        )
        for run in page:
            runs.setdefault(run.data.tags["cell"], run)
        token = page.token
        if not token:
            return runs


def read(uri: str, matrix: str, cells: set[str]) -> dict[str, dict[str, Result]]:
    """What the runs of these cells hold, by cell and task; runs of other cells are of other configurations."""
    with store(uri, write=False) as client, tempfile.TemporaryDirectory() as folder:
        runs = done_runs(client, matrix, uri)
        return {cell: results_of(client, runs[cell], folder) for cell in cells & runs.keys()}


def results_of(client: MlflowClient, run: Run, folder: str) -> dict[str, Result]:
    """By task, of the last step that was evaluated."""
    points = sorted(client.get_metric_history(run.info.run_id, "entropy/mean"), key=lambda point: point.step)
    paths: dict[str, str] = {}
    for path in sorted(artifact.path for artifact in client.list_artifacts(run.info.run_id, "evals")):
        paths[path.rpartition("-")[0]] = path  # the step is the end of the name, with leading zeros
    results = {}
    for path in paths.values():
        record = files.read_json(Path(client.download_artifacts(run.info.run_id, path, folder)))
        entropy = (points[0].value, points[-1].value)
        flags = record.get("flags", [])  # which earlier versions did not write
        results[record["task"]] = Result(record["problems"], np.array(record["right"]), entropy, flags)
    return results


def result_of(results: dict[str, Result], task: str, cell: str) -> Result:
    if task not in results:
        raise UserError(f"the MLflow run of cell {cell} has no evaluation of {task!r} among its artifacts")
    return results[task]


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
        entropy_initial=mean_interval(np.array([r.entropy[0] for r in results])) if results else None,
        entropy_final=mean_interval(np.array([r.entropy[1] for r in results])) if results else None,
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


# Showing


def render(rows: Sequence[Row], how: str) -> str:
    one_of("--format", how, ("table", "md", "csv", "json"))
    if how == "json":
        return json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n"
    if how == "csv":
        return as_csv(rows)
    sections: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        sections.setdefault((row.task, row.model), []).append(row)
    as_section = as_table if how == "table" else as_markdown
    parts = [
        as_section(f"{task}, {model}{FLAG * any(row.flags for row in section)}", section)
        for (task, model), section in sections.items()
    ]
    bullet = "- " if how == "md" else ""
    return "\n".join([*parts, "".join(f"{bullet}{note}\n" for note in notes(rows))])


def as_csv(rows: Sequence[Row]) -> str:
    flat = [dict(leaves(dataclasses.asdict(row))) for row in rows]
    fullest_first = sorted(flat, key=len, reverse=True)  # a row without results has few columns
    file = io.StringIO()
    names = list(dict.fromkeys(name for row in fullest_first for name in row))
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return file.getvalue()


def leaves(value: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Columns such as pass_at_k.16.low; an estimate that is missing has none, a limit that is missing is empty."""
    for key, child in value.items():
        if isinstance(child, dict):
            yield from leaves(child, f"{prefix}{key}.")
        elif isinstance(child, list):
            yield f"{prefix}{key}", "; ".join(child)
        elif child is not None or key in ("low", "high"):
            yield f"{prefix}{key}", child


def cells_of(rows: Sequence[Row]) -> list[list[str]]:
    """The header and the lines of a table for people; task, model and k are columns where they vary."""
    first = rows[0]
    varied = [axis for axis in ("task", "model", "k") if len({getattr(row, axis) for row in rows}) > 1]
    headline = "Pass@k" if "k" in varied else f"Pass@{first.k}"
    deltas = [f"Avg@K - {first.baseline}", f"{headline} - {first.baseline}"]
    header = ["method", *varied, "Avg@K", headline, *deltas, "entropy, first step", "last step", "seeds"]
    return [header, *([row.method, *(str(getattr(row, axis)) for axis in varied), *numbers(row)] for row in rows)]


def numbers(row: Row) -> list[str]:
    delta = row.delta_to_baseline
    return [
        shown(row.avg_at_k),
        shown(row.pass_at_k.get(row.k)),
        *([compared(delta, row), compared(row.delta_pass_at_k[row.k], row)] if delta else ["", ""]),
        shown(row.entropy_initial),
        shown(row.entropy_final),
        f"{row.seeds_done} of {row.seeds_expected}",
    ]


def shown(estimate: Estimate | None, sign: str = "") -> str:
    if estimate is None:
        return ""
    mean = f"{estimate.mean:{sign}.3f}"
    return mean if estimate.high is None else f"{mean} ±{estimate.high - estimate.mean:.3f}"


def compared(estimate: Estimate, row: Row) -> str:
    if row.method == row.baseline:
        return "baseline"
    return f"{shown(estimate, '+')} {mark(estimate)}".rstrip()


def mark(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None or estimate.low <= 0 <= estimate.high:
        return ""
    return BETTER if estimate.low > 0 else WORSE


def notes(rows: Sequence[Row]) -> list[str]:
    texts = [
        "±: 95 % interval over seeds and problems; of entropy, over seeds. Avg@K: the mean over all samples.",
        f"{BETTER} {WORSE}: the interval of the difference to {rows[0].baseline}, paired by seed and problem, "
        "excludes 0; without a mark the two are tied.",
    ]
    if any(row.seeds_done == 1 for row in rows):
        texts.append("One seed cannot tell how much seeds differ: rows with one seed have no interval and no mark.")
    if any(row.seeds_done < row.seeds_expected for row in rows):
        texts.append("Not every expected cell is done; differences use the seeds that both have.")
    return texts + sorted({f"{FLAG.strip()} {row.task}: {flag}" for row in rows for flag in row.flags})


def as_markdown(title: str, rows: Sequence[Row]) -> str:
    header, *body = cells_of(rows)
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *body]
    return f"**{title}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_table(title: str, rows: Sequence[Row]) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    header, *body = cells_of(rows)
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in header:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for line in body:
        table.add_row(*map(Text, line))
    file = io.StringIO()
    Console(file=file, width=240, color_system=None).print(table)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().rstrip().splitlines())
