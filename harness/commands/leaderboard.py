"""entrobench leaderboard: the table of a matrix, read from MLflow."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import tasks
from harness.commands.common import Commands, command, load, with_config
from harness.config import Config
from harness.matrix import Cell, cells

if TYPE_CHECKING:
    from harness.report.leaderboard import Row


def add(commands: Commands) -> None:
    parser = with_config(command(commands, "leaderboard", "the table, read from MLflow"))
    parser.add_argument("--format", choices=["table", "md", "csv", "json"], default="table")


def call(arguments: argparse.Namespace) -> int:
    config = load(arguments)
    show(config, cells(config), arguments.format)
    return 0


def show(config: Config, matrix: list[Cell], how: str) -> None:
    from harness.report.render import render

    print(render(rows(config, matrix), how), end="")


def rows(config: Config, matrix: list[Cell]) -> list[Row]:
    """Returns the rows of the matrix, with the cells that are not done counted as expected."""
    from harness.report import leaderboard

    expected = [
        leaderboard.Expected(
            cell.method,
            cell.task,
            [tasks.build(spec).name for spec in cell.evaluation_tasks],
            cell.model,
            cell.seed,
            cell.key,
            cell.sources,
        )
        for cell in matrix
    ]
    ks = {task: config.eval.of(task).k for each in expected for task in each.eval_tasks}
    return leaderboard.rows(config.tracking_uri, config.name, expected, config.baseline, ks)
