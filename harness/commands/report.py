"""entrobench report: one self-contained HTML page with the table, the curves and the answers."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from harness.base.errors import UserError
from harness.commands import leaderboard
from harness.commands.common import Commands, command, console, load, with_plugins
from harness.config import Config
from harness.matrix import cells

EXAMPLES = (
    "entrobench report demo",
    "entrobench report demo train.updates=2 --plugin my_methods",
    "entrobench report --experiment demo --uri http://server:5000",
)


def add(commands: Commands) -> None:
    text = "one self-contained HTML page: the table, the curves and the answers"
    parser = command(commands, "report", text, EXAMPLES)
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="a YAML file, or the name of one in configs/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="a value in place of the file's")
    with_plugins(parser)
    parser.add_argument("--experiment", metavar="NAME", help="an experiment of MLflow, instead of CONFIG")
    parser.add_argument("--uri", help="the MLflow store of --experiment (default: that of the results folder)")


def call(arguments: argparse.Namespace) -> int:
    if bool(arguments.config) == bool(arguments.experiment):
        raise UserError("report needs one of two: a CONFIG, or --experiment NAME of an MLflow store")
    if arguments.uri and arguments.config:
        raise UserError("--uri goes with --experiment; a CONFIG names its store as tracking.uri")
    if arguments.experiment:
        path = report_of(arguments.experiment, arguments.uri or Config().tracking_uri)
    else:
        plugins = [word for name in arguments.plugin for word in ("--plugin", name)]
        words = ["entrobench", "run", arguments.config, *arguments.overrides, *plugins]
        path = report(load(arguments), shlex.join(words))
    console.print(f"wrote {path}, {path.stat().st_size / 2**20:.1f} MiB")
    return 0


def report(config: Config, said: str | None = None) -> Path:
    """Writes the page of a matrix beside its cells; `said` is the command that runs it, if there is one."""
    from harness.page import gather, page

    matrix = cells(config)
    told = gather.of_folders(config, matrix, leaderboard.rows(config, matrix), said)
    folder = config.folder / "report"
    page.write_pictures(told, folder)
    return page.write(told, folder / "report.html")


def report_of(experiment: str, uri: str) -> Path:
    """Writes the page of an MLflow experiment into the current folder, by its name."""
    from harness.page import gather, page

    return page.write(gather.of_experiment(uri, experiment), Path(f"report-{page.slug(experiment)}.html"))
