"""The time of missing cells, measured on finished cells of the same size in the results folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from statistics import mean
from typing import Any

from harness.base.errors import Damaged
from harness.cells.spec import FILE as SPEC
from harness.cells.spec import CellSpec
from harness.cells.state import FILE as STATE
from harness.cells.state import Progress, State
from harness.config import Config
from harness.matrix import Cell

# The settings on which the time of a cell depends.
SIZE = {
    "train": ("steps", "prompts", "group", "updates", "epochs", "filter", "resample", "dtype"),
    "rollout": ("engine", "max_new_tokens", "max_prompt_tokens", "lag"),
    "eval": ("tasks", "split", "problems", "samples", "every", "by_task"),
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
    sizes = [size_of_cell(cell) for cell, _ in progress]
    missing = [(cell, size) for (cell, now), size in zip(progress, sizes, strict=True) if now.state != "done"]
    records = [(size, now.record) for (_, now), size in zip(progress, sizes, strict=True)]
    seconds = finished_seconds(records)
    if not {size for _, size in missing} <= seconds.keys():
        records += earlier_records(config.folder, {cell.folder for cell, _ in progress})
        seconds = finished_seconds(records)
    measured_sizes = [size for _, size in missing if size in seconds]
    unmeasured = [cell for cell, size in missing if size not in seconds]
    if not measured_sizes:
        return None, unmeasured
    total = sum(mean(seconds[size]) for size in measured_sizes)
    finished = sum(len(seconds[size]) for size in set(measured_sizes))
    return MeasuredTime(total, len(measured_sizes), finished), unmeasured


def finished_seconds(records: Iterable[tuple[str, State]]) -> dict[str, list[float]]:
    """Return the seconds of the cells that have run all of their steps, by size; one that collapsed has not."""
    seconds: dict[str, list[float]] = {}
    for size, record in records:
        if record.state == "done" and record.collapsed is None:
            seconds.setdefault(size, []).append(record.seconds)
    return seconds


def earlier_records(folder: Path, ours: Collection[Path]) -> Iterator[tuple[str, State]]:
    """Yield the size and the state of the newest cells in a folder that are not ours: those of other settings, of other
    methods, and of earlier attempts."""
    newest: dict[Path, float] = {}
    for path in folder.glob(f"*/{SPEC}"):
        # The folder may be cleaned meanwhile, and a damaged cell outside of the plan does not affect it.
        with suppress(FileNotFoundError):
            if path.parent not in ours:
                newest[path.parent] = (path.parent / STATE).stat().st_mtime
    for cell_folder in nlargest(OTHERS, newest, key=lambda each: newest[each]):
        with suppress(Damaged):
            spec = CellSpec.read(cell_folder)
            yield size_of(spec.model, spec.task, spec.settings), State.read(cell_folder)


def size_of_cell(cell: Cell) -> str:
    return size_of(cell.model, cell.task, cell.shared.settled(cell.config, cell.model).plain)


def size_of(model: str, task: str, settings: Mapping[str, Any]) -> str:
    """Return a text that is equal for cells of the same size, which the method is not part of."""
    parts = {section: {key: settings.get(section, {}).get(key) for key in keys} for section, keys in SIZE.items()}
    return json.dumps([model, task, parts], sort_keys=True, default=str)
