"""The content of a matrix's page, read from MLflow; imports no torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
from pandas import DataFrame

from harness.base import files
from harness.base.addresses import may_be_written, visible_address
from harness.base.errors import Damaged, UserError
from harness.cells.outcome import right_distinct
from harness.config import Config
from harness.matrix import Cell
from harness.packs.reader import opened_packs
from harness.page.content import (
    CURVES,
    EVALUATIONS,
    PageContent,
    Record,
    assemble_content,
    joined_frames,
    page_cells,
)
from harness.table.board import Board, Expected
from harness.table.compare import comparisons
from harness.table.experiment import Experiment
from harness.table.frames import read_frames, setting_text
from harness.table.leaderboard import leaderboard_rows
from harness.table.select import runs_left_out
from harness.tokens.logged import DRAWN
from harness.tracking.artifacts import artifact_folder
from harness.tracking.reader import Curves, Run, reader
from harness.tracking.store import is_server


def content_of_config(config: Config, matrix: Sequence[Cell], command: str | None) -> PageContent:
    """Return the content of a configuration's page; `command` repeats the matrix."""
    uri = config.tracking_uri
    with reader(uri) as source:
        experiment = Experiment(source, config.name, uri)
        board = Board.of_config(config, matrix).with_adopted(experiment.runs)
        notes, settings = runs_left_out(board, experiment), dataclasses.asdict(config)
        folders = {cell.id: cell.folder for cell in matrix}
        return content_of_board(experiment, board, notes=notes, command=command, settings=settings, folders=folders)


def content_of_experiment(uri: str, name: str) -> PageContent:
    """Return the content of the page of an experiment: of the newest of its matrices."""
    with reader(uri) as source:
        experiment = Experiment(source, name, uri)
        board, *others = experiment.boards()
        if not any(cell.eval_tasks for cell in board.expected):
            raise UserError(f"no run of {name!r} at {visible_address(uri)} has an evaluation yet")
        notes = runs_left_out(board, experiment)
        if others:
            notes.append(f"The experiment holds {len(others) + 1} matrices, of which this is the newest.")
        return content_of_board(experiment, board, notes=notes)


def content_of_packs(paths: Sequence[Path]) -> PageContent:
    """Return the content of the page of one pack, or of several with the same protocol."""
    with opened_packs(paths) as experiment:
        [board] = experiment.boards()
        source = f"the files {', '.join(path.name for path in paths)}"
        # The files of a pack lie in a temporary folder, which no link may lead to.
        return content_of_board(experiment, board, notes=[], origin=source, folders={})


def content_of_board(
    experiment: Experiment,
    board: Board,
    *,
    notes: Sequence[str],
    command: str | None = None,
    settings: Mapping[str, Any] | None = None,
    origin: str | None = None,
    folders: Mapping[str, Path] | None = None,
) -> PageContent:
    """Return the content of a matrix's page.

    `settings` default to the newest run's. `origin` is the source of the runs; the default is MLflow. `folders` of
    the cells default to the folders of their runs' artifacts, where these are on this machine.
    """
    board = board.named()
    expected = {cell.cell for cell in board.expected}
    runs = {}
    for key, run in experiment.newest.items():
        if key in expected:
            runs[key] = run
    specs = dict(zip(runs, experiment.specs(list(runs.values())), strict=True))
    curves = dict(zip(runs, experiment.source.curves(list(runs.values()), DRAWN.fullmatch), strict=True))
    records = []
    for cell in board.expected:
        record = key_fields(cell)
        if cell.cell in runs:
            record |= run_fields(runs[cell.cell], curves[cell.cell])
            spec = specs[cell.cell]
            record["identity"] = {} if spec is None else spec.identity
            if folders is None:
                record["folder"] = artifact_folder(runs[cell.cell].artifacts, experiment.uri)
            else:
                record["folder"] = folders.get(cell.cell)
            record["address"] = run_address(experiment.uri, experiment.id, runs[cell.cell].id)
        records.append(record)

    page_notes = list(notes)  # more are added as the samples are read

    def samples(cell: str, task: str, step: int) -> list[Record]:
        run, path = runs[cell], f"samples/evaluate-{task}-{step:06d}.jsonl"
        [text] = experiment.source.texts([run], path)
        return [] if text is None else undamaged_answers(text, Path(run.name, path), page_notes)

    newest_settings: Mapping[str, Any] = {}
    for spec in specs.values():
        if spec is not None:
            newest_settings = spec.settings
    frames = read_frames(experiment, board.expected, board.baseline)
    cells = page_cells(records)
    return assemble_content(
        cells,
        curves_frame(curves),
        evaluations_of_runs(experiment, runs),
        leaderboard_rows(frames, board.baseline, board.ks),
        comparisons(frames, board.baseline, board.ks),
        samples,
        name=board.title,
        source=origin or f"MLflow at {visible_address(experiment.uri)}",
        command=command,
        baseline=board.baseline,
        methods=list(cells["method"].unique()),
        settings=dict(newest_settings if settings is None else settings),
        notes=page_notes,
    )


def undamaged_answers(content: bytes, path: Path, notes: list[str]) -> list[Record]:
    """Return the answers in a file; none if it is damaged, and add a note that says so."""
    try:
        return files.parse_lines(content, path)
    except Damaged as damage:
        notes.append(f"Answers are left out: {damage}.")
        return []


def key_fields(expected: Expected) -> dict[str, Any]:
    return {
        "method": expected.method,
        "task": expected.task,
        "model": expected.model,
        "setting": setting_text(tuple(expected.setting.items())),
        "seed": expected.seed,
        "cell": expected.cell,
    }


def run_fields(run: Run, curves: Curves) -> dict[str, Any]:
    """Return the fields of a cell that its run has recorded."""
    return {
        "state": run.tags["status"],
        "reason": run.tags.get("reason") or None,
        "device": run.tags.get("device", ""),
        "made": origin_of_run(run),
        "times": first_and_last_time(curves),
    }


def run_address(uri: str, experiment: str, run: str) -> str | None:
    """Return the address of a run's files on an MLflow server; None for other stores and for addresses with secrets."""
    if not is_server(uri) or not may_be_written(uri):
        return None
    return f"{uri.rstrip('/')}/#/experiments/{experiment}/runs/{run}/artifacts"


def origin_of_run(run: Run) -> dict[str, Any]:
    """Return the recorded code and machine of a run."""
    prefix = "version."
    versions = {}
    for key, value in run.tags.items():
        if key.startswith(prefix):
            versions[key.removeprefix(prefix)] = value
    return {
        "version": run.tags.get("code.version"),
        "commit": run.tags.get("code.commit"),
        "processor": run.tags.get("processor"),
        "versions": versions,
    }


def first_and_last_time(curves: Curves) -> tuple[float, float] | None:
    times = []
    for points in curves.values():
        times += [point.time for point in points]
    return (min(times), max(times)) if times else None


def curves_frame(curves_by_cell: Mapping[str, Curves]) -> DataFrame:
    """Return the frame of curves."""
    values = {}  # of a step that is there twice the last value counts
    for cell, curves in curves_by_cell.items():
        for metric, points in curves.items():
            for point in points:
                values[cell, metric, point.step] = point.value
    keys = DataFrame(list(values), columns=CURVES[:-1])
    return keys.assign(value=pandas.Series(list(values.values()), dtype="float64"))


def evaluations_of_runs(experiment: Experiment, runs: Mapping[str, Run]) -> DataFrame:
    """Return the frame of evaluations; files of the same name are read together, which saves a server's time."""
    cells_by_path: dict[str, list[str]] = {}
    for cell, run in runs.items():
        for path in experiment.source.listed(run, "evals"):
            cells_by_path.setdefault(path, []).append(cell)
    evaluations = []
    for path in sorted(cells_by_path):
        cells = cells_by_path[path]
        texts = experiment.source.texts([runs[cell] for cell in cells], path)
        for cell, text in zip(cells, texts, strict=True):
            if text is not None:
                evaluations.append(evaluation_frame(cell, json.loads(text)))
    return joined_frames(evaluations, EVALUATIONS)


def evaluation_frame(cell: str, record: Record) -> DataFrame:
    """Return the rows of one evaluation of a cell, in the order of the problem set."""
    task, step = record["task"], record["step"]
    distinct = right_distinct(record, f"the evaluation of {task} at step {step}")
    counts = {
        "problem": record["problems"],
        "right": list(map(sum, record["right"])),
        "samples": list(map(len, record["right"])),
        "right_distinct": distinct,
    }
    return DataFrame({"cell": cell, "evaluated": task, "step": step, **counts}, columns=EVALUATIONS)
