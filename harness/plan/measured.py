"""The time of missing cells, measured on finished cells of the same size in the results folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.base.errors import Damaged
from harness.cells.spec import FILE as SPEC
from harness.cells.spec import CellSpec, is_adopted
from harness.cells.state import FILE as STATE
from harness.cells.state import Progress, State
from harness.config import Config
from harness.matrix import Cell

# The settings on which the time of a cell depends.
SIZE = {
    "train": ("steps", "prompts", "group", "updates", "epochs", "filter", "resample", "dtype", "backend"),
    "rollout": ("engine", "max_new_tokens", "max_prompt_tokens", "lag"),
    "eval": ("tasks", "split", "problems", "samples", "every", "by_task"),
    "stop": ("tokens",),
    "hardware": ("device", "nodes", "ranks", "threads", "share", "micro_tokens", "recompute", "offload"),
}
OTHERS = 64  # earlier cells whose configurations are read, the newest first: a folder may hold thousands


@dataclass(frozen=True)
class MeasuredTime:
    """The time of the missing cells that have finished cells of the same size."""

    seconds: float  # of these missing cells, one after the other
    cells: int
    finished: int  # cells of the same size that have finished


def measured_time(config: Config, progress: Sequence[tuple[Cell, Progress]]) -> tuple[MeasuredTime | None, list[Cell]]:
    """Return the measured time, None if nothing of the same size has finished, and the cells that it leaves out."""
    missing: list[tuple[Cell, str]] = []
    seconds: dict[str, list[float]] = {}  # of finished cells, by size
    for cell, now in progress:
        size = size_of_cell(cell)
        if now.missing:
            missing.append((cell, size))
        add_if_finished(seconds, size, now.record)
    if any(size not in seconds for _, size in missing):
        ours = {cell.folder for cell, _ in progress}
        for size, record in earlier_records(config.folder, ours):
            add_if_finished(seconds, size, record)
    measured: Counter[str] = Counter()  # missing cells by size
    unmeasured: list[Cell] = []
    for cell, size in missing:
        if size in seconds:
            measured[size] += 1
        else:
            unmeasured.append(cell)
    if not measured:
        return None, unmeasured
    total = sum(number * fmean(seconds[size]) for size, number in measured.items())
    finished = sum(len(seconds[size]) for size in measured)
    return MeasuredTime(total, measured.total(), finished), unmeasured


def add_if_finished(seconds: dict[str, list[float]], size: str, record: State) -> None:
    """Add the time of a cell that has run all of its steps, which one that collapsed has not."""
    if record.state == "done" and record.collapsed is None:
        seconds.setdefault(size, []).append(record.seconds)


def earlier_records(folder: Path, ours: Collection[Path]) -> Iterator[tuple[str, State]]:
    """Yield the size and the state of the newest cells in a folder that are not ours: of other settings, methods, or
    versions."""
    changed: dict[Path, float] = {}
    for path in folder.glob(f"*/{SPEC}"):
        # The folder may be cleaned meanwhile, and a damaged cell outside of the plan does not affect it.
        with suppress(FileNotFoundError):
            if path.parent not in ours and not is_adopted(path.parent):  # which was evaluated and not trained
                changed[path.parent] = (path.parent / STATE).stat().st_mtime
    for cell_folder in nlargest(OTHERS, changed, key=lambda path: changed[path]):
        with suppress(Damaged):
            spec = CellSpec.read(cell_folder)
            yield size_of(spec.key.model, spec.key.task, spec.settings), State.read(cell_folder)


def size_of_cell(cell: Cell) -> str:
    return size_of(cell.model, cell.task, cell.shared.settled(cell.config, cell.model).plain)


def size_of(model: str, task: str, settings: Mapping[str, Any]) -> str:
    """Return a text that is equal for cells of the same size, which the method is not part of."""
    parts: dict[str, Any] = {"model": model, "task": task}
    for section, keys in SIZE.items():
        values = settings.get(section, {})
        parts |= {f"{section}.{key}": values.get(key) for key in keys}
    return json.dumps(parts, sort_keys=True, default=str)
