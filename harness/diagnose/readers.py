"""The curves of one run from a cell of ours, a log of TRL or verl, or a CSV file.

A log may be of any size: it is read line by line, and only the numbers that the rules read are kept.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.base.errors import UserError, shown
from harness.base.units import plural
from harness.cells import log
from harness.cells.spec import FILE as CONFIG
from harness.cells.spec import CellSpec
from harness.cells.state import STALE, Progress
from harness.diagnose.signals import BONUS, CLIPPED, CSV, KEYS, OURS, SIDES, SIGNALS, TRL, VERL, LoggedRun, curve_of

TRL_STATE = "trainer_state.json"
READABLE = (
    "a cell's folder or its metrics.jsonl, TRL's trainer_state.json or its log history as JSON lines, the log of "
    "verl's file logger, or a CSV file with a column `step` and such keys as columns"
)

Points = dict[str, dict[int, float]]  # by key and step
Record = tuple[int, Mapping[str, Any]]  # a step and what was logged at it


def read_run(path: Path) -> LoggedRun:
    """Return the curves of a run; refuse a path that no format fits, and a run without any entropy."""
    if not path.exists():
        raise UserError(f"{path} does not exist; diagnose reads {READABLE}")
    run = read_run_folder(path) if path.is_dir() else read_run_file(path)
    if run.signal("entropy") is None:
        of_ours, of_trl, of_verl = (keys[0] for keys in SIGNALS["entropy"])
        keys = f"{of_ours} (entrobench), {of_trl} (TRL) or {of_verl} (verl)"
        reason = "; ".join(run.notes) or f"expected {keys}, with a finite value at some step"
        raise UserError(f"{path} has no curve of the entropy; {reason}")
    return run


# Folders


def read_run_folder(folder: Path) -> LoggedRun:
    """Return the run of a cell's folder, or of the newest checkpoint in an output folder of TRL."""
    if (folder / CONFIG).is_file():
        return read_cell(folder)
    states = {checkpoint_step(path): path for path in folder.glob(f"checkpoint-*/{TRL_STATE}")}
    if (folder / TRL_STATE).exists():
        return read_run_file(folder / TRL_STATE)
    if states:
        return read_run_file(states[max(states)])
    cells = len(list(folder.glob(f"*/{CONFIG}")))
    if cells:
        raise UserError(f"{folder} holds {plural(cells, 'cell')}; diagnose reads one of them, {folder}/CELL")
    raise UserError(f"{folder} is not the folder of a run; diagnose reads {READABLE}")


def checkpoint_step(path: Path) -> int:
    """Return the step of a checkpoint of TRL; -1 if its name has none."""
    number = path.parent.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def read_cell(folder: Path) -> LoggedRun:
    """Return the run of a cell; refuse one that has not begun or is still running."""
    spec = CellSpec.read(folder)
    progress = Progress.read(folder)
    if progress.state == "planned":
        raise UserError(f"{folder} has not begun; diagnose reads a run that has ended")
    if progress.state == "running":
        steps = spec.config.train.steps
        raise UserError(
            f"{folder} is still running, at step {progress.step} of {steps}; diagnose reads a run that has ended"
        )
    notes = []
    if progress.state == STALE:
        notes.append("the cell was interrupted before its end")
    if progress.state == "failed":
        notes.append(f"the cell failed: {progress.reason}")
    points = points_of(training_steps(log.MetricsLog(folder).read()))
    coefficient = bonus_coefficient(spec.identity)
    if coefficient is not None and "entropy/mean" in points:
        first_step = min(points["entropy/mean"])
        points[BONUS] = {first_step: coefficient}
    return logged_run(folder, OURS, points, method=spec.key.method, stopped=progress.record.collapsed, notes=notes)


def bonus_coefficient(identity: Mapping[str, Any]) -> float | None:
    """Return the coefficient of a cell's fixed entropy bonus, 0 without a bonus; None if each step logs it."""
    for component in identity.get("method", ()):
        if component.get("component") == "AdaptiveEntropy":
            return None
        if component.get("component") == "EntropyBonus":
            coefficient = component["coefficient"]
            return None if isinstance(coefficient, str) else float(coefficient)  # a text: it changes over the steps
    return 0.0


def training_steps(lines: Iterable[Mapping[str, Any]]) -> Iterator[Record]:
    """Yield the steps of metrics.jsonl, with zeros for the shares that are logged only where they are not 0."""
    for line in lines:
        metrics = dict(line["metrics"])
        if "entropy/mean" in metrics:  # a training step; step 0 is the evaluation before training
            metrics.setdefault("verdicts/unparsed", 0.0)
            yield line["step"], metrics


# Files


def read_run_file(path: Path) -> LoggedRun:
    """Return the run of a file, by the format of its first line."""
    if not path.is_file():  # a named pipe would be waited for
        raise UserError(f"{path} is neither a file nor a folder; diagnose reads {READABLE}")
    if path.suffix.lower() == ".csv":
        return logged_run(path, CSV, points_of(csv_records(path)))
    first_line = next((line for _, line in lines_of(path) if line.strip()), None)
    if first_line is None:
        raise UserError(f"{path} is empty; diagnose reads {READABLE}")
    try:
        first = parse_json(first_line)
    except (ValueError, RecursionError):
        first = None  # a document of several lines, as TRL's trainer writes it
    if not isinstance(first, dict) or "log_history" in first:
        return logged_run(path, TRL, points_of(trl_records(trl_history(path))))
    # In this order, since lines of the first two have a step too.
    if {"step", "time", "metrics"} <= first.keys():
        return logged_run(path, OURS, points_of(training_steps(own_lines(path))))
    if {"step", "data"} <= first.keys():
        return logged_run(path, VERL, points_of(verl_records(path)))
    if log.is_step(first.get("step")):
        return logged_run(path, TRL, points_of(trl_records(record for _, record in json_lines(path))))
    keys = shown(sorted(first))
    raise UserError(f"{path} has lines of an unknown format, with the keys {keys}; diagnose reads {READABLE}")


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    with open(path, "rb") as file:
        yield from enumerate(file, 1)


def parse_json(content: bytes) -> Any:
    """Parse JSON in which a whole number may be of any length."""
    return json.loads(content, parse_int=lambda digits: int(digits) if len(digits) < 20 else float(digits))


def own_lines(path: Path) -> Iterator[dict[str, Any]]:
    for _, line in lines_of(path):
        if line.endswith(b"\n"):  # a last line without its end is half a line
            yield log.parsed(line[:-1], path)


def verl_records(path: Path) -> Iterator[Record]:
    for number, line in json_lines(path):
        step, data = line.get("step"), line.get("data")
        if not log.is_step(step) or not isinstance(data, dict):
            raise UserError(f"line {number} of {path} has no step with its data, as verl writes them")
        yield step, data


def csv_records(path: Path) -> Iterator[Record]:
    """Yield the lines of a CSV file, without its empty fields."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = csv.DictReader(file, skipinitialspace=True)
        try:
            columns = lines.fieldnames or []
            if "step" not in columns:
                raise ValueError(f"its columns are {shown(columns)}")
            for line in lines:
                numbers = {key: float(line[key]) for key in KEYS & line.keys() if line[key]}
                step = float(line["step"] or "nan")  # pandas writes 5.0 into a column with missing values
                if not step.is_integer():
                    raise ValueError(f"step {shown(line['step'])}")
                yield int(step), numbers
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise UserError(f"{path} is not UTF-8 (byte 0x{byte:02x}); save it as UTF-8") from error
        except (csv.Error, ValueError) as error:
            raise UserError(
                f"line {lines.line_num} of {path} needs a whole number in the column `step` and numbers under the keys "
                f"of curves ({error})"
            ) from error


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the complete lines with their numbers; the last one may be half written, by a killed process."""
    for number, line in lines_of(path):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except (ValueError, RecursionError) as error:
            if not line.endswith(b"\n"):
                return
            raise UserError(f"line {number} of {path} is not JSON ({error})") from error
        if not isinstance(record, dict):
            raise UserError(f"line {number} of {path} is not a JSON object")
        yield number, record


def trl_history(path: Path) -> list[dict[str, Any]]:
    """Return the log history of a trainer_state.json, or one that is a single list."""
    try:
        document = parse_json(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is neither JSON nor a log ({error}); diagnose reads {READABLE}") from error
    history = document.get("log_history") if isinstance(document, dict) else document
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise UserError(f"{path} has no list named log_history; diagnose reads {READABLE}")
    return history


def trl_records(history: Iterable[Mapping[str, Any]]) -> Iterator[Record]:
    return ((entry["step"], entry) for entry in history if log.is_step(entry.get("step")))


# Points


def points_of(records: Iterable[Record]) -> Points:
    """Return the numbers of the signals by key and step; of a step that was logged twice, after resuming, the later."""
    points: Points = {}
    for step, metrics in records:
        for key in KEYS & metrics.keys():
            value = metrics[key]
            if value is None:  # a NaN, as verl writes it to JSON
                points.setdefault(key, {})[step] = float("nan")
            elif isinstance(value, int | float) and not isinstance(value, bool):
                points.setdefault(key, {})[step] = float(value)
    low, high = (points.get(side, {}) for side in SIDES)
    if both := low.keys() & high.keys():
        points[CLIPPED] = {step: low[step] + high[step] for step in both}
    return points


def logged_run(path: Path, trainer: str, points: Points, **known: Any) -> LoggedRun:
    """Return a run by its points; `known`: what the record of a cell says of it."""
    return LoggedRun(path, trainer, {key: curve_of(key, by_step) for key, by_step in points.items()}, **known)
