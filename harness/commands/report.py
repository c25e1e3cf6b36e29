"""entrobench report: one self-contained HTML page with the finding, the table, the curves and the answers."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

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


def call(arguments: argparse.Namespace) -> int:
    from harness.page import page

    check_out(arguments.out)
    check_one_source(arguments)
    if arguments.pack:
        path = page.report_of_packs(arguments.pack, arguments.out)
    elif arguments.experiment:
        path = page.write_experiment_report(arguments.experiment, arguments.uri or Config().tracking_uri, arguments.out)
    else:
        command_line = shlex.join(["entrobench", "run", *words_of_config(arguments)])
        config = config_of_arguments(arguments)
        path = page.write_report(config, cells(config), command_line, arguments.out)
    console.print(f"wrote {path}, {path.stat().st_size / 2**20:.1f} MiB")
    return 0
