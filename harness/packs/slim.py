"""The slim form of a cell: counts and digests in place of answers, and of its metrics those that tables and pages read.

`columns.jsonl.xz` of a slim pack has a line for each column, `[name, {cell: value}]`: equal things of all cells follow
each other, so that they compress well. Opened, each cell has the files of a whole one, without `samples/`:

    evals/            the numbers of right and of distinct right answers to each problem, and digests of the answers; of
                      the right ones only the number is known, so they come first in `right`
    metrics.jsonl     the metrics below at each step, and its time in milliseconds; seconds of the phases are sums over
                      all steps, at the last one
    sums.json         of these files
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.base import files
from harness.cells import checksums, evaluations
from harness.cells.evaluations import evaluation_path, stored_answers_digest
from harness.cells.log import MetricsLog
from harness.cells.state import State
from harness.tokens.logged import DRAWN

KEPT = ("config.yaml", "state.json", "made.json")  # as they are
READ_BY_TABLES = re.compile(r"entropy/mean|weights/dropped|tokens/generated(_total)?|eval/.+|problems/.+")
SECONDS = re.compile(r"time/\w+_s")
TEXT, EVALUATION, STEPS, METRIC = "file", "evals", "steps", "metric"  # the first part of a column's name

Columns = dict[str, dict[str, Any]]  # values by cell, by column


def is_slim(folder: Path) -> bool:
    """Return whether the answers of a cell were left out."""
    return any("answers" in record for _, record in evaluations.all_evaluations(folder))


def slim_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a step that are kept in every slim cell."""
    kept = {}
    for key, value in line["metrics"].items():
        if not SECONDS.fullmatch(key) and (DRAWN.fullmatch(key) or READ_BY_TABLES.fullmatch(key)):
            kept[key] = value
    return {"step": line["step"], "metrics": kept}


# Writing


def slim_columns(folders: Iterable[Path]) -> Columns:
    """Return the slim form of cells, by column and then by cell."""
    columns: Columns = {}
    for folder in folders:
        for column, value in columns_of_cell(folder):
            columns.setdefault(column, {})[folder.name] = value
    return dict(sorted(columns.items()))


def columns_of_cell(folder: Path) -> Iterator[tuple[str, Any]]:
    for name in KEPT:
        if (folder / name).exists():
            yield f"{TEXT} {name}", (folder / name).read_text("utf-8")
    for path, record in evaluations.all_evaluations(folder):
        for key, value in slim_evaluation(path, record).items():
            yield f"{EVALUATION} {key} {path.name}", value
    lines = MetricsLog(folder).read()
    yield f"{STEPS} step", [line["step"] for line in lines]
    yield f"{STEPS} time", [int(line["time"] * 1000) for line in lines]
    by_metric: dict[str, dict[int, float]] = {}
    for place, line in enumerate(lines):
        for key, value in slim_line(line)["metrics"].items():
            by_metric.setdefault(key, {})[place] = value
        for key, value in line["metrics"].items():
            if SECONDS.fullmatch(key):
                sums, last = by_metric.setdefault(key, {}), len(lines) - 1
                sums[last] = sums.get(last, 0.0) + value
    for key, values in by_metric.items():
        steps = [] if len(values) == len(lines) else [*values]  # empty: all
        yield f"{METRIC} {key}", [steps, [*values.values()]]


def slim_evaluation(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an evaluation, with the number of right answers to each problem."""
    parts = dict(record)
    if answers := stored_answers_digest(path):
        parts["answers"] = answers
    parts["samples"] = len(record["right"][0])
    parts["right"] = list(map(sum, record["right"]))
    return parts


# Reading


def write_cells(columns: Iterable[tuple[str, Mapping[str, Any]]], folder: Path, *, most_answers: int) -> None:
    """Write the files of slim cells; each cell gets a folder of its name in this one."""
    by_file: dict[tuple[str, str], dict[str, Any]] = {}
    lines: dict[str, dict[str, Any]] = {}
    metrics: dict[str, dict[str, Any]] = {}
    for column, by_cell in columns:
        kind, _, name = column.partition(" ")
        for cell, value in by_cell.items():
            if kind == TEXT and name in KEPT:
                files.write_text(folder / cell / name, value)
            elif kind == EVALUATION:
                key, _, file = name.partition(" ")
                by_file.setdefault((cell, file), {})[key] = value
            elif kind == STEPS:
                lines.setdefault(cell, {})[name] = value
            elif kind == METRIC:
                metrics.setdefault(cell, {})[name] = value
            else:
                raise ValueError(f"{column} is no column")
    for (cell, file), parts in by_file.items():
        most_answers -= parts["samples"] * len(parts["right"])
        if most_answers < 0:  # a small file may hold any number, and each answer takes space here
            raise ValueError(f"{file} has too many answers")
        write_evaluation(folder / cell, file, parts)
    for cell, steps in lines.items():
        write_steps(folder / cell, steps, metrics.get(cell, {}))


def write_evaluation(folder: Path, file: str, parts: dict[str, Any]) -> None:
    samples, counts = parts.pop("samples"), parts["right"]
    if not all(0 <= count <= samples for count in counts):
        raise ValueError(f"{file} has too many answers")
    written = evaluation_path(folder, parts["task"], parts["step"])
    if Path(file).name != file or written != folder / evaluations.FOLDER / file:
        raise ValueError(f"{file} is the name of an evaluation of {parts['task']}")
    right = [[1] * count + [0] * (samples - count) for count in counts]
    evaluations.write_evaluation(folder, parts | {"right": right})


def write_steps(folder: Path, steps: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    pairs = zip(steps["step"], steps["time"], strict=True)
    # Half a millisecond more, so that cutting it to milliseconds gives the same number again.
    records = [{"step": step, "time": (time + 0.5) / 1000, "metrics": {}} for step, time in pairs]
    for key, (places, values) in metrics.items():
        for place, value in zip(places or range(len(records)), values, strict=True):
            records[place]["metrics"][key] = value
    MetricsLog(folder).write(records)
    if State.known(folder).state == "done":
        checksums.write_checksums(folder)
