"""entrobench report: one self-contained HTML page with the finding, the table, the curves and the answers."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from harness.base.errors import UserError
from harness.base.terminal import console
from harness.commands.common import (
    Commands,
    check_one_source,
    check_out,
    command,
    config_of_arguments,
    with_config,
    with_other_sources,
    words_of_config,
)
from harness.config import Config
from harness.matrix import cells

EXAMPLES = (
    "entrobench report demo",
    "entrobench report demo train.updates=2 --plugin my_methods",
    "entrobench report demo --watch",
    "entrobench report --pack demo.zip --pack theirs.zip",
    "entrobench report --experiment demo --uri http://server:5000 --out demo.html",
)


def add(commands: Commands) -> None:
    text = "one self-contained HTML page: the finding, the table, the curves and the answers"
    parser = with_config(command(commands, "report", text, EXAMPLES), optional=True)
    parser.add_argument("--experiment", metavar="NAME", help="an experiment of MLflow, instead of CONFIG")
    with_other_sources(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write the page (default: the results folder)"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="write the page of CONFIG whenever MLflow has new steps, until all cells have ended; browsers reload it",
    )


def call(arguments: argparse.Namespace) -> int:
    from harness.page import page

    check_out(arguments.out)
    check_one_source(arguments)
    if arguments.watch and not arguments.config:
        raise UserError("--watch goes with a CONFIG, whose cells it waits for")
    if arguments.pack:
        path = page.report_of_packs(arguments.pack, arguments.out)
    elif arguments.experiment:
        path = page.write_experiment_report(arguments.experiment, arguments.uri or Config().tracking_uri, arguments.out)
    else:
        command_line = shlex.join(["entrobench", "run", *words_of_config(arguments)])
        config = config_of_arguments(arguments)
        matrix = cells(config)
        if arguments.watch:
            page.watch_report(config, matrix, command_line, arguments.out, say_written)
            return 0
        path = page.write_report(config, matrix, command_line, arguments.out)
    say_written(path)
    return 0


def say_written(path: Path) -> None:
    console.print(f"wrote {path}, {path.stat().st_size / 2**20:.1f} MiB")
