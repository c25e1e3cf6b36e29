"""The curves of one run from a cell of ours, a log of TRL or a log of verl."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.base.errors import UserError, shown
from harness.cells import log
from harness.cells.spec import FILE as CONFIG
from harness.cells.spec import CellSpec
from harness.cells.state import STALE, Progress
from harness.diagnose.curves import MetricCurve, curve_of
from harness.diagnose.signals import BONUS, CLIPPED, OURS, SIGNALS, TRL, VERL, LoggedRun
from harness.terminal.units import plural

TRL_STATE = "trainer_state.json"
READABLE = (
    "a cell's folder or its metrics.jsonl, TRL's trainer_state.json or its log history as JSON lines, or the console "
    "or file log of verl"
)

# A line of verl's console logger, `step:3 - actor/entropy:0.31 - ...`. Ray writes the name of a process and colors in
# front of it, and a progress bar may share its line. With NumPy 2 a number is written as `np.float64(0.31)`.
VERL_LINE = re.compile(r"(?:^|[\s\r])step:(\d+) - (\S.*)")
VERL_NUMBER = re.compile(r"(?:np\.\w+\()?([-+\w.]+?)\)?")
COLORS = re.compile(r"\x1b\[[0-9;]*m")

Points = dict[str, dict[int, float]]  # by key and step
Record = tuple[int, Mapping[str, Any]]  # a step and what was logged at it


def read_run(path: Path) -> LoggedRun:
    """Return the curves of a run; refuse a path that no format fits, and a run without any entropy."""
    if not path.exists():
        raise UserError(f"{path} does not exist; diagnose reads {READABLE}")
    run = read_run_folder(path) if path.is_dir() else read_run_file(path)
    if not run.curves:
        raise UserError(f"{path} holds no training step; nothing was logged before the run ended")
    if run.signal("entropy") is None:
        raise UserError(f"{path} has no curve of the entropy; {entropy_keys()}")
    return run


def entropy_keys() -> str:
    """Return the keys under which the trainers log the entropy, as the end of a sentence."""
    of_ours, of_trl, of_verl = (keys[0] for keys in SIGNALS["entropy"])
    return f"expected {of_ours} (entrobench), {of_trl} (TRL) or {of_verl} (verl), with a finite value at some step"


# Folders


def read_run_folder(folder: Path) -> LoggedRun:
    """Return the run of a cell's folder, or of the newest checkpoint in an output folder of TRL."""
    if (folder / CONFIG).exists():
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
    return int(number) if number.isdigit() else -1


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
    points = points_of_cell(log.MetricsLog(folder).read())
    coefficient = bonus_coefficient(spec.identity)
    if coefficient is not None and points:
        first_step = min(points["entropy/mean"])
        points[BONUS] = {first_step: coefficient}
    return LoggedRun(folder, OURS, curves_of(points), spec.key.method, progress.record.collapsed, notes)


def bonus_coefficient(identity: Mapping[str, Any]) -> float | None:
    """Return the coefficient of a cell's fixed entropy bonus, 0 without a bonus; None if each step logs it."""
    for component in identity.get("method", ()):
        if component.get("component") == "EntropyBonus":
            return float(component["coefficient"])
        if component.get("component") == "AdaptiveEntropy":
            return None
    return 0.0


def points_of_cell(lines: Iterable[Mapping[str, Any]]) -> Points:
    """Return the points of metrics.jsonl, with zeros for the shares that are logged only where they are not 0."""
    records = []
    for line in lines:
        metrics = dict(line["metrics"])
        if "entropy/mean" in metrics:  # a training step; step 0 is the evaluation before training
            metrics.setdefault("verdicts/unparsed", 0.0)
            if "ratio/clipped_low" in metrics:
                metrics[CLIPPED] = metrics["ratio/clipped_low"] + metrics["ratio/clipped_high"]
            records.append((line["step"], metrics))
    return points_of(records)


# Files


def read_run_file(path: Path) -> LoggedRun:
    """Return the run of a file, by the format of its first line."""
    content = path.read_bytes()
    if not content.strip():
        raise UserError(f"{path} is empty; diagnose reads {READABLE}")
    text = content.decode(errors="replace")
    if text.lstrip()[0] not in "{[":
        return read_verl_console(path, text)
    first_line = text.lstrip().partition("\n")[0]
    try:
        first = json.loads(first_line)
    except ValueError:
        return read_trl_document(path, text)  # a document of several lines, as TRL's trainer writes it
    if isinstance(first, list) or "log_history" in first:
        return read_trl_document(path, text)
    for fits, read in LINE_FORMATS:
        if fits(first):
            return read(path, text)
    keys = shown(sorted(first))
    raise UserError(f"{path} has lines of an unknown format, with the keys {keys}; diagnose reads {READABLE}")


def read_own_lines(path: Path, text: str) -> LoggedRun:
    *lines, _ = text.encode().split(b"\n")  # the text after the last line end is half a line, or empty
    parsed_lines = [log.parsed(line, path) for line in lines]
    return LoggedRun(path, OURS, curves_of(points_of_cell(parsed_lines)))


def read_verl_lines(path: Path, text: str) -> LoggedRun:
    records = [(int(line["step"]), line["data"]) for line in json_lines(path, text)]
    return LoggedRun(path, VERL, curves_of(points_of(records)))


def read_trl_lines(path: Path, text: str) -> LoggedRun:
    return trl_run(path, json_lines(path, text))


# In this order, since lines of the first two have a step too.
LINE_FORMATS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Callable[[Path, str], LoggedRun]], ...] = (
    (lambda first: {"step", "time", "metrics"} <= first.keys(), read_own_lines),
    (lambda first: {"step", "data"} <= first.keys(), read_verl_lines),
    (lambda first: "step" in first and isinstance(first["step"], int), read_trl_lines),
)


def json_lines(path: Path, text: str) -> list[dict[str, Any]]:
    """Return the complete lines; the last one may be half written, by a killed process."""
    lines = text.splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines) and not text.endswith("\n"):
                break
            raise UserError(f"line {number} of {path} is not JSON ({error})") from error
        if not isinstance(record, dict):
            raise UserError(f"line {number} of {path} is not a JSON object")
        records.append(record)
    return records


def read_trl_document(path: Path, text: str) -> LoggedRun:
    """Return the run of a trainer_state.json, or of a log history that is a single list."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path} is neither JSON nor a log ({error}); diagnose reads {READABLE}") from error
    history = document.get("log_history") if isinstance(document, dict) else document
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise UserError(f"{path} has no list named log_history; diagnose reads {READABLE}")
    return trl_run(path, history)


def trl_run(path: Path, history: Iterable[Mapping[str, Any]]) -> LoggedRun:
    records = [(entry["step"], entry) for entry in history if isinstance(entry.get("step"), int)]
    return LoggedRun(path, TRL, curves_of(points_of(records)))


def read_verl_console(path: Path, text: str) -> LoggedRun:
    records: list[Record] = []
    for line in text.splitlines():
        if match := VERL_LINE.search(COLORS.sub("", line)):
            records.append((int(match[1]), verl_numbers(match[2])))
    if not records:
        raise UserError(f"{path} has no line of a known format; diagnose reads {READABLE}")
    return LoggedRun(path, VERL, curves_of(points_of(records)))


def verl_numbers(text: str) -> dict[str, float]:
    """Return the numbers of a line such as `actor/entropy:0.31 - actor/grad_norm:np.float64(0.2)`."""
    numbers = {}
    for part in text.split(" - "):
        key, _, value = part.rpartition(":")
        match = VERL_NUMBER.fullmatch(value.strip())
        if match is None:
            continue
        try:
            numbers[key.strip()] = float(match[1])
        except ValueError:  # a text, or two processes that wrote into one line
            continue
    return numbers


# Points


def points_of(records: Iterable[Record]) -> Points:
    """Return the numbers by key and step; for a step that was logged twice, as after resuming, the later ones."""
    points: Points = {}
    for step, metrics in records:
        for key, value in metrics.items():
            if value is None:  # a NaN, as verl writes it to JSON
                points.setdefault(key, {})[step] = float("nan")
            elif isinstance(value, int | float) and not isinstance(value, bool):
                points.setdefault(key, {})[step] = float(value)
    return points


def curves_of(points: Points) -> dict[str, MetricCurve]:
    return {key: curve_of(key, by_step) for key, by_step in points.items()}
