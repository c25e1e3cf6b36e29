"""Reads from MLflow everything that the page shows of a matrix. Imports no torch."""

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
from harness.cells.outcome import right_distinct
from harness.cells.provenance import by_another_source, sources_in
from harness.cells.spec import CellSpec
from harness.config import Config
from harness.matrix import Cell
from harness.page.content import CellRecord, PageContent, Record, StepEvaluation, assemble_content
from harness.table.board import Board, Expected
from harness.table.experiment import Experiment
from harness.table.frames import read_frames, setting_text
from harness.table.leaderboard import leaderboard_rows
from harness.table.packs import opened_packs
from harness.table.select import runs_left_out
from harness.tracking.reader import reader
from harness.tracking.runs import Curves, Run

DRAWN_METRICS = re.compile(
    r"entropy/(mean|answer)|reward/(mean|groups_without_signal)|ratio/clipped_(low|high)"
    r"|responses/(length|truncated|distinct_answers|after_answer)"
    r"|weights/dropped(_positive|_negative)?|dynamics/(positive|negative)_(above|below)/(share|push)|time/\w+_s"
)
OTHER_SOURCE = "†"  # behind the name of a method of which another source than the present one made a cell


def content_of_config(config: Config, matrix: Sequence[Cell], command: str | None) -> PageContent:
    """Return the content of a configuration's page; `command` repeats the matrix.

    A method is marked wherever it is named if another source than the present one made a cell of it that counts.
    """
    board, uri = Board.of_config(config, matrix), config.tracking_uri
    with reader(uri) as source:
        experiment = Experiment(source, config.name, uri)
        outdated = outdated_cells(experiment, board)
        names = {each.method: f"{each.method} {OTHER_SOURCE}" for each in board.expected if each.cell in outdated}
        labels = {cell.id: cell.label for cell in matrix}
        notes = []
        for cell, reason in outdated.items():
            notes.append(f"{OTHER_SOURCE} {labels[cell]}: {reason}; `entrobench run` runs it again.")
        marked = renamed_methods(board, names)
        settings = dataclasses.asdict(config)
        return content_of_board(experiment, marked, notes=notes, command=command, settings=settings)


def content_of_experiment(uri: str, name: str) -> PageContent:
    """Return the content of the page of an experiment: of the newest of its matrices."""
    with reader(uri) as source:
        experiment = Experiment(source, name, uri)
        board, *others = experiment.boards()
        if not any(each.eval_tasks for each in board.expected):
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
        return content_of_board(experiment, board, notes=[], origin=source)


def outdated_cells(experiment: Experiment, board: Board) -> dict[str, str]:
    """Return the cells that are done by another source than the present one, with the reason in words."""
    runs, outdated = experiment.done, {}
    for each in board.expected:
        if each.cell in runs and each.sources is not None:
            reason = by_another_source(sources_in(runs[each.cell].tags), each.sources)
            if reason is not None:
                outdated[each.cell] = reason
    return outdated


def renamed_methods(board: Board, names: Mapping[str, str]) -> Board:
    expected = [dataclasses.replace(each, method=names.get(each.method, each.method)) for each in board.expected]
    return dataclasses.replace(board, expected=expected, baseline=names.get(board.baseline, board.baseline))


def content_of_board(
    experiment: Experiment,
    board: Board,
    *,
    notes: Sequence[str],
    command: str | None = None,
    settings: Mapping[str, Any] | None = None,
    origin: str | None = None,
) -> PageContent:
    """Return the content of a matrix's page.

    `settings`: None for those of the newest run. `origin`: where the runs are from; None for MLflow.
    """
    expected = {each.cell: each for each in board.expected}
    runs = {cell: run for cell, run in experiment.newest.items() if cell in expected}
    specs = dict(zip(runs, experiment.specs(list(runs.values())), strict=True))
    begun = dict(zip(runs, records_of_runs(experiment, expected, runs, specs), strict=True))
    cells = [begun.get(each.cell) or planned_record(each) for each in board.expected]
    runs_by_key = {record.key: runs[cell] for cell, record in begun.items()}

    page_notes = list(notes)  # more are added as the samples are read

    def samples(record: CellRecord, task: str, step: int) -> list[Record]:
        run, path = runs_by_key[record.key], f"samples/evaluate-{task}-{step:06d}.jsonl"
        [text] = experiment.source.texts([run], path)
        return [] if text is None else undamaged_answers(text, Path(run.name, path), page_notes)

    if settings is None:
        known = [spec.settings for spec in specs.values() if spec is not None]
        settings = known[-1] if known else {}  # of the newest run
    frames = read_frames(experiment, board.expected, board.baseline)
    return assemble_content(
        cells,
        leaderboard_rows(frames, board.baseline, board.ks),
        samples,
        name=board.experiment,
        source=origin or f"MLflow at {visible_address(experiment.uri)}",
        command=command,
        baseline=board.baseline,
        methods=list(dict.fromkeys(each.method for each in board.expected)),
        settings=dict(settings),
        notes=page_notes,
    )


def undamaged_answers(content: bytes, path: Path, notes: list[str]) -> list[Record]:
    """Return the answers in a file; none if it is damaged, and add a note that says so."""
    try:
        return files.parse_lines(content, path)
    except Damaged as damage:
        notes.append(f"Answers are left out: {damage}.")
        return []


def planned_record(expected: Expected) -> CellRecord:
    return CellRecord(**key_fields(expected), state="planned")


def key_fields(expected: Expected) -> dict[str, Any]:
    return {
        "method": expected.method,
        "task": expected.task,
        "model": expected.model,
        "setting": setting_text(tuple(expected.setting.items())),
        "seed": expected.seed,
    }


def records_of_runs(
    experiment: Experiment,
    expected: Mapping[str, Expected],
    runs: Mapping[str, Run],
    specs: Mapping[str, CellSpec | None],
) -> list[CellRecord]:
    """Return the records of the cells that have a run."""
    listed = list(runs.values())
    evaluations = evaluations_of_runs(experiment, listed)
    curves = experiment.source.curves(listed, DRAWN_METRICS.fullmatch)
    records = []
    for place, (cell, run) in enumerate(runs.items()):
        spec = specs[cell]
        records.append(
            CellRecord(
                **key_fields(expected[cell]),
                state=run.tags["status"],
                reason=run.tags.get("reason") or None,
                device=run.tags.get("device", ""),
                curves={name: {p.step: p.value for p in points} for name, points in curves[place].items()},
                evaluations=step_evaluations(evaluations[place]),
                identity={} if spec is None else spec.identity,
                made=origin_of_run(run),
                times=first_and_last_time(curves[place]),
            )
        )
    return records


def evaluations_of_runs(experiment: Experiment, runs: Sequence[Run]) -> list[list[Record]]:
    """Return the evaluations of each run; files of the same name are read together, which saves a server's time."""
    paths = [experiment.source.listed(run, "evals") for run in runs]
    records: list[list[Record]] = [[] for _ in runs]
    for path in sorted({path for listed in paths for path in listed}):
        having = [place for place, listed in enumerate(paths) if path in listed]
        texts = experiment.source.texts([runs[place] for place in having], path)
        for place, text in zip(having, texts, strict=True):
            if text is not None:
                records[place].append(json.loads(text))
    return records


def step_evaluations(records: Iterable[Record]) -> dict[str, dict[int, StepEvaluation]]:
    """Return the evaluations by task and step."""
    evaluations: dict[str, dict[int, StepEvaluation]] = defaultdict(dict)
    for record in records:
        task, step = record["task"], record["step"]
        distinct = right_distinct(record, f"the evaluation of {task} at step {step}")
        evaluations[task][step] = StepEvaluation(record["problems"], np.array(record["right"]), np.array(distinct))
    return dict(evaluations)


def origin_of_run(run: Run) -> dict[str, Any]:
    """Return the recorded code and machine of a run."""
    prefix = "version."
    versions = {key.removeprefix(prefix): value for key, value in run.tags.items() if key.startswith(prefix)}
    return {
        "version": run.tags.get("code.version"),
        "commit": run.tags.get("code.commit"),
        "processor": run.tags.get("processor"),
        "versions": versions,
    }


def first_and_last_time(curves: Curves) -> tuple[float, float] | None:
    times = [point.time for points in curves.values() for point in points]
    return (min(times), max(times)) if times else None
