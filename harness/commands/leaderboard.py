"""entrobench leaderboard: the table of a matrix, read from MLflow."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base import files
from harness.base.errors import UserError, one_of
from harness.base.terminal import console, visible, width_of
from harness.commands.common import (
    Commands,
    check_one_source,
    check_out,
    command,
    config_of_arguments,
    with_config,
    with_other_sources,
)
from harness.config import Config
from harness.matrix import cells

if TYPE_CHECKING:
    from harness.table.select import Part

TEXT = "the table, read from MLflow: of a configuration, or of an experiment there"
EXAMPLES = (
    "entrobench leaderboard demo",
    "entrobench leaderboard demo --where method=clip_b --sort pass_at_k --columns avg_at_k,pass_at_k,coverage",
    "entrobench leaderboard demo train.updates=2 --plugin my_methods --baseline ppo --compare",
    "entrobench leaderboard paper --format md",
    "entrobench leaderboard --pack demo.zip --pack theirs.zip",
    "entrobench leaderboard --experiment demo,demo-2 --uri http://server:5000 --format csv --out table.csv",
)


def add(commands: Commands) -> None:
    parser = with_config(command(commands, "leaderboard", TEXT, EXAMPLES), optional=True)
    parser.add_argument(
        "--experiment", action="append", default=[], metavar="NAME,...", help="experiments of MLflow, instead of CONFIG"
    )
    with_other_sources(parser)
    parser.add_argument("--columns", metavar="NAME,...", help="columns in this order; `--columns help` lists them")
    parser.add_argument("--sort", metavar="COLUMN", help="sort by this column, the largest value first")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="key=value",
        help="only cells with this method, task, model, seed or parameter; the baseline is always read",
    )
    parser.add_argument("--baseline", metavar="METHOD", help="compare with this method (default: the configured one)")
    formats = ["table", "md", "csv", "json", "latex", "parquet"]
    parser.add_argument("--format", choices=formats, default="table", help="form of the output")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="add tests, ranks, and the smallest difference that the experiment could detect",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to this file; parquet needs one")


def call(arguments: argparse.Namespace) -> int:
    from harness.table import columns, formats, frames

    if arguments.columns == "help":
        for name, column in columns.COLUMNS.items():
            print(f"{name:<18} {column.header.format(**columns.GENERAL_NAMES)}")
        return 0
    check_options(arguments)
    chosen: Sequence[str] = columns.DEFAULT if arguments.columns is None else arguments.columns.split(",")
    for name in chosen:
        one_of("--columns", name, columns.COLUMNS)
    if arguments.sort is not None:
        one_of("--sort", arguments.sort, columns.COLUMNS)
    parts = selected_parts(arguments)
    if arguments.format == "parquet":
        formats.check_any_done(parts)
        tables = {part.title: frames.with_base_models(part.shown) for part in parts}
        formats.write_parquet(tables, arguments.out)
        return 0
    text = formats.render_parts(
        parts,
        arguments.format,
        shown_columns=chosen,
        sort=arguments.sort,
        comparing=arguments.compare,
        width=None if arguments.out else width_of(console),
    )
    if arguments.out:
        files.write_text(arguments.out, text)
    else:
        print(visible(text), end="")
    return 0


def check_options(arguments: argparse.Namespace) -> None:
    """Refuse options that contradict each other, or that name nothing."""
    how = arguments.format
    check_out(arguments.out)
    check_one_source(arguments)
    if arguments.compare and how in ("latex", "parquet"):
        raise UserError(f"--compare has no --format {how}; allowed: table, md, csv, json")
    if how == "parquet" and arguments.out is None:
        raise UserError("--format parquet goes to a file, and --out names none")
    if how == "parquet" and arguments.baseline:
        raise UserError("--baseline is what scores are compared with, and --format parquet holds answers alone")
    other = "--compare" if arguments.compare else f"--format {how}"
    for name, value in (("--columns", arguments.columns), ("--sort", arguments.sort)):
        if value and (arguments.compare or how in ("latex", "parquet")):
            raise UserError(f"{name} chooses in the table of scores, and {other} asks for another")
    if arguments.columns and how in ("csv", "json"):
        raise UserError(f"--columns chooses what people see (--format table or md); {other} holds every number")


def selected_parts(arguments: argparse.Namespace) -> list[Part]:
    from harness.packs.reader import opened_packs
    from harness.table import select
    from harness.table.board import opened_experiment

    selection = select.conditions(arguments.where), arguments.baseline
    if arguments.pack:
        with opened_packs(arguments.pack) as experiment:
            return select.parts_of_boards(experiment, experiment.boards(), *selection)
    if arguments.config:
        config = config_of_arguments(arguments)
        with opened_experiment(config.name, config.tracking_uri) as experiment:
            board = experiment.board_of(config, cells(config))
            select.check_begun(experiment, board)
            return select.parts_of_boards(experiment, [board], *selection)
    parts: list[Part] = []
    for name in dict.fromkeys(",".join(arguments.experiment).split(",")):
        with opened_experiment(name, arguments.uri or Config().tracking_uri) as experiment:
            parts += select.parts_of_boards(experiment, experiment.boards(), *selection)
    return parts
