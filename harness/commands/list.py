"""entrobench list: what exists, one line each."""

from __future__ import annotations

import argparse

import baselines
import tasks
from harness import config as configs
from harness.commands.common import Commands, command, console, with_plugins
from harness.method import Composition
from harness.rollout import models
from harness.terminal import layout
from harness.terminal.layout import Column


def add(commands: Commands) -> None:
    parser = command(commands, "list", "what exists, one line each")
    parser.add_argument("what", choices=["methods", "tasks", "models", "configs"])
    with_plugins(parser)


def call(arguments: argparse.Namespace) -> int:
    rows: list[list[str]] = []
    if arguments.what == "methods":
        for name, entry in baselines.table(arguments.plugin).items():
            about = entry.about if isinstance(entry, Composition) else entry.__doc__
            made_of = f" {entry.spec}" if isinstance(entry, Composition) else ""
            rows.append([name, first_line(about) + made_of, entry.source])
    elif arguments.what == "tasks":
        for name, task in tasks.task_table(arguments.plugin).items():
            rows.append([name, first_line(task.__doc__)])
    elif arguments.what == "models":
        for name in models.model_names():
            rows.append([name, models.resolve(name).summary()])
    else:
        for path in sorted(configs.CONFIGS.glob("*.yaml")):
            comment = path.read_text().splitlines()[0]
            rows.append([path.stem, comment.removeprefix("#").strip()])
    columns = [Column("name"), Column("about", folds=True), Column("source", folds=True)]
    layout.show(console, columns[: len(rows[0])], rows, names=False)
    return 0


def first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]
