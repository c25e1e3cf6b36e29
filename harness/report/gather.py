"""Reads what the page shows of a matrix, from the cells' folders or from MLflow alone. Imports no torch."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.base import files
from harness.base.addresses import visible_address
from harness.base.errors import Damaged, UserError
from harness.config import Config, told
from harness.matrix import Cell
from harness.record import evals
from harness.record.log import MetricsLog
from harness.record.outcome import right_distinct
from harness.record.reader import reader
from harness.record.spec import CellSpec
from harness.record.state import OUTDATED, Progress, State
from harness.report import leaderboard
from harness.report.board import Expected
from harness.report.leaderboard import Row
from harness.report.read import Experiment
from harness.report.select import left_out
from harness.report.story import Evaluation, Record, Story, Told, assembled

SHOWN = re.compile(
    r"entropy/(mean|answer)|reward/(mean|groups_without_signal)|ratio/clipped_(low|high)"
    r"|responses/(length|truncated|distinct_answers|after_answer)"
    r"|weights/dropped(_positive|_negative)?|dynamics/(positive|negative)_(above|below)/(share|push)|time/\w+_s"
)
MADE = "made.json"
OLD = "†"  # behind a method's name: by another source than the present one


def of_folders(config: Config, matrix: Sequence[Cell], rows: list[Row], command: str | None) -> Story:
    """Returns the story of a matrix whose cells have folders here. A method has a mark wherever it is named if another
    source made some of what counts of it."""
    found = [(cell, cell.progress()) for cell in matrix]
    old = [(cell, now) for cell, now in found if now.state == OUTDATED and State.read(cell.folder).state == "done"]
    names = {cell.method: f"{cell.method} {OLD}" for cell, _ in old}

    def named(method: str) -> str:
        return names.get(method, method)

    cells = [dataclasses.replace(told := of_folder(*each), method=named(told.method)) for each in found]
    rows = [dataclasses.replace(row, method=named(row.method), baseline=named(row.baseline)) for row in rows]
    places = {cell.axes: place.folder for cell, place in zip(cells, matrix, strict=True)}
    notes = [f"{OLD} {cell.label}: {now.reason}; `entrobench run` runs it anew." for cell, now in old]

    def samples(cell: Told, task: str, step: int) -> list[Record]:
        path = places[cell.axes] / "samples" / f"evaluate-{task}-{step:06d}.jsonl"
        return whole_answers(path.read_bytes(), path, notes) if path.exists() else []

    return assembled(
        cells,
        rows,
        samples,
        name=config.name,
        source=f"the cells' folders in {config.folder}, and the MLflow store for the table",
        command=command,
        baseline=named(config.baseline),
        methods=[named(method) for method in config.methods],
        settings=dataclasses.asdict(config),
        notes=notes,
    )


def whole_answers(content: bytes, path: Path, notes: list[str]) -> list[Record]:
    """Return the answers in a file; of one that is damaged none, and a note that says so."""
    try:
        return files.parse_lines(content, path)
    except Damaged as damage:
        notes.append(f"Answers are left out: {damage}.")
        return []


def of_folder(cell: Cell, progress: Progress) -> Told:
    """Returns what a cell has recorded; one that another source has done is done, too, as in the table."""
    own = {axis: getattr(cell, axis) for axis in ("method", "task", "model", "seed")}
    own["setting"] = told(cell.config.setting)
    try:
        return read_folder(cell, progress, own)
    except Damaged as damage:
        return Told(**own, state="failed", reason=str(damage), identity=cell.identity)


def read_folder(cell: Cell, progress: Progress, own: dict[str, Any]) -> Told:
    folder = cell.folder
    if progress.state == "planned":
        return Told(**own, state="planned", identity=cell.identity)
    lines = MetricsLog(folder).read()
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for line in lines:
        for name, value in line["metrics"].items():
            if SHOWN.fullmatch(name):
                curves[name][line["step"]] = value
    return Told(
        **own,
        state="done" if progress.state == OUTDATED and State.read(folder).state == "done" else progress.state,
        reason=progress.reason,
        device=State.read(folder).device,
        curves=dict(curves),
        evaluations=evaluations(record for _, record in evals.every(folder)),
        identity=CellSpec.read(folder).identity,
        made=made_of(folder / MADE),
        times=(lines[0]["time"], lines[-1]["time"]) if lines else None,
    )


def made_of(path: Path) -> dict[str, Any]:
    """Returns what is known of the code and the machine that made a cell; nothing of a cell that did not note it."""
    found = files.read_json(path) if path.exists() else {}
    return {key: found[key] for key in ("version", "commit", "processor", "versions") if key in found}


def evaluations(records: Iterable[Record]) -> dict[str, dict[int, Evaluation]]:
    found: dict[str, dict[int, Evaluation]] = defaultdict(dict)
    for record in records:
        counts = right_distinct(record, f"the evaluation of {record['task']} at step {record['step']}")
        found[record["task"]][record["step"]] = Evaluation(
            record["problems"], np.array(record["right"]), np.array(counts)
        )
    return dict(found)


# From MLflow alone


def of_experiment(uri: str, name: str) -> Story:
    """Returns the story of an MLflow experiment, whose cells may have run anywhere: of the newest of its matrices."""
    with reader(uri) as source:
        experiment = Experiment(source, name, uri)
        board, *others = experiment.boards()
        if not any(each.eval_tasks for each in board.expected):
            raise UserError(f"no run of {name!r} at {visible_address(uri)} has an evaluation yet")
        expected = {each.cell: each for each in board.expected}
        runs = {cell: run for cell, run in experiment.newest.items() if cell in expected}
        specs = dict(zip(runs, experiment.specs(list(runs.values())), strict=True))
        found = dict(zip(runs, of_runs(experiment, [expected[cell] for cell in runs], specs), strict=True))
        cells = [
            found.get(each.cell) or Told(each.method, each.task, each.model, each.seed, "planned", told(each.setting))
            for each in board.expected
        ]
        places = {each.axes: runs[cell] for cell, each in found.items()}
        results = experiment.results([each.cell for each in board.expected])
        entries = leaderboard.entries_of(results, board.expected, board.baseline)
        notes = left_out(board, experiment)
        if others:
            notes.append(f"The experiment holds {len(others) + 1} matrices, of which this is the newest.")

        def samples(cell: Told, task: str, step: int) -> list[Record]:
            run, path = places[cell.axes], f"samples/evaluate-{task}-{step:06d}.jsonl"
            [text] = source.texts([run], path)
            return [] if text is None else whole_answers(text, Path(run.name, path), notes)

        return assembled(
            cells,
            leaderboard.rows_of(entries, board.baseline, board.ks),
            samples,
            name=name,
            source="MLflow alone",
            command=None,
            baseline=board.baseline,
            methods=list(dict.fromkeys(each.method for each in board.expected)),
            settings=next((spec.settings for spec in reversed(specs.values()) if spec is not None), {}),
            notes=notes,
        )


def of_runs(experiment: Experiment, expected: Sequence[Expected], specs: Mapping[str, CellSpec | None]) -> list[Told]:
    """Returns the cells that have a run, with all that the page shows of them."""
    source, runs = experiment.source, [experiment.newest[each.cell] for each in expected]
    paths = [source.listed(run, "evals") for run in runs]
    records: list[list[Record]] = [[] for _ in runs]
    for path in sorted({path for listed in paths for path in listed}):
        having = [number for number, listed in enumerate(paths) if path in listed]
        for number, text in zip(having, source.texts([runs[number] for number in having], path), strict=True):
            records[number] += [] if text is None else [json.loads(text)]
    found = []
    every = source.curves(runs, SHOWN.fullmatch)
    for each, run, evaluated, curves in zip(expected, runs, records, every, strict=True):
        spec, tags = specs[each.cell], run.tags
        stamps = [point.time for points in curves.values() for point in points]
        found.append(
            Told(
                each.method,
                each.task,
                each.model,
                each.seed,
                tags["status"],
                told(each.setting),
                reason=tags.get("reason") or None,
                device=tags.get("device", ""),
                curves={name: {point.step: point.value for point in points} for name, points in curves.items()},
                evaluations=evaluations(evaluated),
                identity={} if spec is None else spec.identity,
                made={
                    "version": tags.get("code.version"),
                    "commit": tags.get("code.commit"),
                    "processor": tags.get("processor"),
                    "versions": {key[8:]: value for key, value in tags.items() if key.startswith("version.")},
                },
                times=(min(stamps), max(stamps)) if stamps else None,
            )
        )
    return found
