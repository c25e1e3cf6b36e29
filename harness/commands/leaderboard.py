"""entrobench leaderboard: the table of a matrix, read from MLflow."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.commands.common import Commands, command, load, with_plugins
from harness.config import Config
from harness.matrix import Cell, cells

if TYPE_CHECKING:
    from harness.report.leaderboard import Row

TEXT = "the table, read from MLflow: of a configuration, or of whatever an experiment there holds"


def add(commands: Commands) -> None:
    parser = command(commands, "leaderboard", TEXT)
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="a YAML file, or the name of one in configs/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="for example train.steps=10")
    with_plugins(parser)
    parser.add_argument(
        "--experiment", action="append", default=[], metavar="NAME,...", help="instead of CONFIG; several may be given"
    )
    parser.add_argument("--uri", help="of the MLflow store (default: MLFLOW_TRACKING_URI, else results/mlflow.db)")
    parser.add_argument("--columns", metavar="NAME,...", help="which, in which order; `--columns help` lists them")
    parser.add_argument("--sort", metavar="COLUMN", help="the largest value first")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="key=value",
        help="only cells with this method, task, model, seed or parameter; the baseline is read in any case",
    )
    parser.add_argument("--baseline", metavar="METHOD", help="compare with this one (default: as was configured)")
    parser.add_argument("--before", action="store_true", help="with a row of the model before training")
    parser.add_argument("--format", choices=["table", "md", "csv", "json"], default="table")


def call(arguments: argparse.Namespace) -> int:
    from harness.record.runs import reader
    from harness.report import columns, select
    from harness.report.board import Board
    from harness.report.read import Experiment

    if arguments.columns == "help":
        print("\n".join(f"{name:<14} {column.header}" for name, column in columns.COLUMNS.items()))
        return 0
    if bool(arguments.config) == bool(arguments.experiment):
        raise UserError("leaderboard needs one of two: a CONFIG, or --experiment NAME of an MLflow store")
    chosen = columns.known("--columns", arguments.columns.split(",")) if arguments.columns else columns.DEFAULT
    if arguments.sort:
        columns.known("--sort", [arguments.sort])
    wanted = select.conditions(arguments.where)
    config = load(arguments) if arguments.config else Config()
    uri = arguments.uri or config.tracking_uri
    tables = []
    with reader(uri) as source:
        names = [name for given in arguments.experiment for name in given.split(",")] or [config.name]
        for name in dict.fromkeys(names):
            experiment = Experiment(source, name, uri)
            boards = [Board.of_config(config, cells(config))] if arguments.config else experiment.boards()
            for board in boards:
                select.check_any(board, experiment)
                rows = select.rows(board, experiment, wanted, arguments.baseline, before=arguments.before)
                rows = columns.ordered(rows, arguments.sort) if arguments.sort else rows
                tables.append(select.Part(select.title(board, boards), rows, select.lacking(board, experiment)))
    print(select.text(tables, arguments.format, chosen), end="")
    return 0


def show(config: Config, matrix: list[Cell], how: str) -> None:
    from harness.report.render import render

    print(render(rows(config, matrix), how), end="")


def rows(config: Config, matrix: list[Cell]) -> list[Row]:
    """Returns the rows of the matrix, with the cells that are not done counted as expected."""
    from harness.report import leaderboard
    from harness.report.board import Board

    board = Board.of_config(config, matrix)
    return leaderboard.rows(config.tracking_uri, board.experiment, board.expected, board.baseline, board.ks)
