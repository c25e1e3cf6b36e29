"""entrobench list: what exists, one line each."""

from __future__ import annotations

import argparse

from rich.table import Table

import baselines
import tasks
from harness import config as configs
from harness.commands.common import Commands, command, console, with_plugins
from harness.rollout import models


def add(commands: Commands) -> None:
    parser = command(commands, "list", "what exists, one line each")
    parser.add_argument("what", choices=["methods", "tasks", "models", "configs"])
    with_plugins(parser)


def call(arguments: argparse.Namespace) -> int:
    table = Table(box=None, show_header=False)
    if arguments.what == "methods":
        for name, cls in baselines.table(arguments.plugin).items():
            table.add_row(name, first_line(cls), cls.source)
    elif arguments.what == "tasks":
        for name, task in tasks.table(arguments.plugin).items():
            table.add_row(name, first_line(task))
    elif arguments.what == "models":
        for name in models.names():
            table.add_row(name, models.resolve(name).summary())
    else:
        for path in sorted(configs.CONFIGS.glob("*.yaml")):
            comment = path.read_text().splitlines()[0]
            table.add_row(path.stem, comment.removeprefix("#").strip())
    console.print(table)
    return 0


def first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]
