"""entrobench leaderboard: the table of a matrix, read from MLflow."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import tasks
from harness.base import files
from harness.base.errors import UserError
from harness.base.fit import visible, width_of
from harness.commands.common import Commands, command, console, load, with_config
from harness.config import Config
from harness.matrix import Cell, cells

if TYPE_CHECKING:
    from harness.report.leaderboard import Entry, Expected, Row


def add(commands: Commands) -> None:
    parser = with_config(command(commands, "leaderboard", "the table, read from MLflow"))
    parser.add_argument("--format", choices=["table", "md", "csv", "json", "latex", "parquet"], default="table")
    parser.add_argument("--compare", action="store_true", help="tests, ranks, and what the experiment could have seen")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it; parquet needs one")


def call(arguments: argparse.Namespace) -> int:
    config, how, out = load(arguments), arguments.format, arguments.out
    if arguments.compare and how in ("latex", "parquet"):
        raise UserError(f"--compare has no --format {how}; allowed: table, md, csv, json")
    if how == "parquet" and out is None:
        raise UserError("--format parquet goes to a file, and --out names none")
    matrix = cells(config)
    if how == "parquet":
        write_answers(config, matrix, out)
    elif out is None:
        show(config, matrix, how, compare=arguments.compare)
    else:
        files.write_text(out, rendered(config, matrix, how, compare=arguments.compare))
    return 0


def show(config: Config, matrix: list[Cell], how: str, *, compare: bool = False) -> None:
    print(visible(rendered(config, matrix, how, width_of(console), compare=compare)), end="")


def rendered(config: Config, matrix: list[Cell], how: str, width: int | None = None, *, compare: bool = False) -> str:
    from harness.report import compare as comparing
    from harness.report import latex, render

    if not compare and how != "latex":
        return render.render(rows(config, matrix), how, width)
    found = comparing.comparisons(entries(config, matrix), config.baseline, asked(config, matrix)[1])
    return comparing.render(found, how, width) if compare else latex.render(found)


def write_answers(config: Config, matrix: list[Cell], out: Path) -> None:
    from harness.report import export

    export.write(entries(config, matrix), out)


def entries(config: Config, matrix: list[Cell]) -> list[Entry]:
    """Returns the answers themselves, by method, task and model."""
    from harness.report import leaderboard
    from harness.report.read import read

    expected, _ = asked(config, matrix)
    results = read(config.tracking_uri, config.name, {each.cell for each in expected})
    return leaderboard.entries_of(results, expected, config.baseline)


def rows(config: Config, matrix: list[Cell]) -> list[Row]:
    """Returns the rows of the matrix, with the cells that are not done counted as expected."""
    from harness.report import leaderboard

    expected, ks = asked(config, matrix)
    return leaderboard.rows(config.tracking_uri, config.name, expected, config.baseline, ks)


def asked(config: Config, matrix: list[Cell]) -> tuple[list[Expected], dict[str, int]]:
    """Returns the cells that the leaderboard is of, and the K of the headline Pass@K by evaluation task."""
    from harness.report import leaderboard

    expected = [
        leaderboard.Expected(
            cell.method,
            cell.task,
            [tasks.build(spec, config.plugins).name for spec in cell.evaluation_tasks],
            cell.model,
            cell.seed,
            cell.key,
            cell.sources,
        )
        for cell in matrix
    ]
    return expected, {task: config.eval.of(task).k for each in expected for task in each.eval_tasks}
