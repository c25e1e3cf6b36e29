"""entrobench status: how far each cell has come, and why one failed."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands.common import Commands, command, console, load, tell_outdated, with_config
from harness.launch import slurm
from harness.matrix import cells, leftovers
from harness.terminal import layout
from harness.terminal.layout import Column

COLUMNS = [*map(Column, ("cell", "state", "step", "entropy", "reward")), Column("reason", folds=True)]

LINES, TAIL = 5, 4096  # of the log of a cell that failed: so many, of so many bytes at most


def add(commands: Commands) -> None:
    with_config(command(commands, "status", "how far each cell has come, and why one failed"))


def call(arguments: argparse.Namespace) -> int:
    config = load(arguments)
    matrix = cells(config)
    rows, jobs = [], slurm.queued(config)
    found = [(cell, cell.progress()) for cell in matrix]
    for cell, progress in found:
        job = f"SLURM: {jobs[cell.id]}" if cell.id in jobs else None
        numbers = [
            f"{progress.metrics[k]:.3f}" if k in progress.metrics else "" for k in ("entropy/mean", "reward/mean")
        ]
        step = f"{progress.step}/{cell.config.train.steps}"
        rows.append([cell.label, progress.state, step, *numbers, "; ".join(filter(None, (job, progress.reason)))])
    layout.show(console, COLUMNS, rows, goes=[("entropy", "reward")])
    for cell, progress in found:
        if progress.state == "failed":
            console.print(f"the end of {cell.folder / 'log.txt'}:", style="red")
            for line in last_words(cell.folder):
                console.print(f"    {line}", style="dim")
    tell_outdated(found, "`entrobench run` trains them again, with --keep-stale it keeps those that are done")
    others, attempts = leftovers(config, matrix)
    if others:
        console.print(f"{len(others)} more cells in {config.folder} belong to earlier versions of this configuration")
    if attempts:
        console.print(f"{len(attempts)} earlier attempts at cells are kept in {config.folder}")
    if others or attempts:
        console.print("`entrobench clean` removes what no configuration means any more")
    return 0


def last_words(folder: Path) -> list[str]:
    """Returns the last lines of a cell's log."""
    path = folder / "log.txt"
    if not path.exists():
        return []
    with open(path, "rb") as file:
        file.seek(max(path.stat().st_size - TAIL, 0))
        return file.read().decode(errors="replace").splitlines()[-LINES:]
