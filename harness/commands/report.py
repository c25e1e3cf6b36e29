"""entrobench report: one self-contained HTML page with the table and the curves."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands import leaderboard
from harness.commands.common import Commands, command, console, load, with_config
from harness.config import Config
from harness.matrix import cells


def add(commands: Commands) -> None:
    with_config(command(commands, "report", "one self-contained HTML page: the table and the curves"))


def call(arguments: argparse.Namespace) -> int:
    console.print(f"wrote {report(load(arguments))}")
    return 0


def report(config: Config) -> Path:
    from harness.report import page

    matrix = cells(config)
    return page.write(config, matrix, leaderboard.rows(config, matrix))
