"""entrobench status: how far each cell has come, and why one failed."""

from __future__ import annotations

import argparse

from rich.table import Table

from harness.commands.common import Commands, command, console, load, tell_outdated, with_config
from harness.matrix import cells, leftovers


def add(commands: Commands) -> None:
    with_config(command(commands, "status", "how far each cell has come, and why one failed"))


def call(arguments: argparse.Namespace) -> int:
    config = load(arguments)
    table = Table("cell", "state", "step", "entropy", "reward", "reason", box=None, header_style="dim")
    matrix = cells(config)
    for cell in matrix:
        progress = cell.progress()
        numbers = [
            f"{progress.metrics[k]:.3f}" if k in progress.metrics else "" for k in ("entropy/mean", "reward/mean")
        ]
        table.add_row(
            cell.label, progress.state, f"{progress.step}/{config.train.steps}", *numbers, progress.reason or ""
        )
    console.print(table)
    tell_outdated(matrix, "`entrobench run` runs them anew, with --keep-stale it keeps those that are done")
    others, attempts = leftovers(config, matrix)
    if others:
        console.print(f"{len(others)} more cells in {config.folder} belong to earlier versions of this configuration")
    if attempts:
        console.print(f"{len(attempts)} earlier attempts at cells are kept in {config.folder}")
    if others or attempts:
        console.print("`entrobench clean` removes what no configuration means any more")
    return 0
