"""entrobench status: the progress of each cell, and the reason of each failure."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from harness.base import files, terminal
from harness.base.errors import Damaged
from harness.base.terminal import Column, console
from harness.base.units import plural
from harness.cells.spec import CellSpec, adopted_folders
from harness.cells.state import WATCHED, Progress
from harness.commands.common import Commands, command, config_of_arguments, with_config, words_of_config
from harness.launch import slurm
from harness.matrix import cells, leftovers

COLUMNS = [*map(Column, ("cell", "state", "step", "entropy", "reward")), Column("reason", folds=True)]

LINES, TAIL = 5, 4096  # the lines of a failed cell's log that are shown, and the bytes that are read for them

EXAMPLES = ("entrobench status demo", "entrobench status my.yaml train.steps=20 --plugin my_methods")


def add(commands: Commands) -> None:
    with_config(command(commands, "status", "the progress of each cell, and why one failed", EXAMPLES))


def call(arguments: argparse.Namespace) -> int:
    config = config_of_arguments(arguments)
    matrix = cells(config)
    rows, progresses, jobs = [], [], slurm.queued_cells(config)
    for cell in matrix:
        progress = cell.progress(WATCHED)
        job = f"SLURM: {jobs[cell.id]}" if cell.id in jobs else None
        reason = "; ".join(filter(None, (job, progress.reason)))
        entropy, reward = progress.metrics.get("entropy/mean"), progress.metrics.get("reward/mean")
        step = f"{progress.step}/{cell.config.train.steps}"
        rows.append([cell.label, progress.state, step, number_text(entropy), number_text(reward), reason])
        progresses.append((cell, progress))
    for folder in adopted_folders(config.folder):  # of cells that were trained elsewhere
        try:
            key, progress = CellSpec.read(folder).key, Progress.read(folder)
            label = f"{key.method} seed {key.seed}"
        except Damaged as damage:
            label, progress = folder.name, Progress("failed", str(damage))
        rows.append([label, progress.state, str(progress.step), "", "", progress.reason or ""])
    terminal.show_table(console, COLUMNS, rows, goes=[("entropy", "reward")])
    for cell, progress in progresses:
        if progress.state == "failed":
            console.print(f"the end of {cell.folder / 'log.txt'}:", style="red")
            for line in last_words(cell.folder):
                console.print(f"    {line}", style="dim")
    for line in leftover_lines(config.folder, Counter(leftovers(config, matrix).values()), arguments):
        console.print(line)
    return 0


def number_text(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def leftover_lines(folder: Path, left: Mapping[str | None, int], arguments: argparse.Namespace) -> list[str]:
    """Return lines on the cells in a matrix's folder that the configuration does not include.

    `left`: their numbers by the parts edited since, as `leftovers` names them. With overrides these cells may be the
    whole matrix of the configuration itself, so deleting them is not suggested.
    """
    lines = []
    for edited, number in left.items():
        if edited is not None:
            lines.append(f"{plural(number, 'cell')} of an earlier version of {edited}")
        else:
            why = "than these overrides give" if arguments.overrides else "from overrides or an edited configuration"
            lines.append(f"{plural(number, 'more cell')} in {folder} of other settings {why}")
    if not lines or arguments.overrides:
        return lines
    clean = shlex.join(["entrobench", "clean", *words_of_config(arguments)])
    return [f"{line}: `{clean}` deletes them" for line in lines]


def last_words(folder: Path) -> list[str]:
    """Return the last lines of a cell's log."""
    path = folder / "log.txt"
    if not path.exists():
        return []
    with files.open_record(path) as file:
        file.seek(max(path.stat().st_size - TAIL, 0))
        return file.read().decode(errors="replace").splitlines()[-LINES:]
