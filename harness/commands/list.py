"""entrobench list: the methods, tasks, models, configurations and studies that exist."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import baselines
import tasks
from harness import config as configs
from harness.base import terminal
from harness.base.errors import UserError
from harness.base.terminal import Column, console
from harness.commands.common import Commands, command, with_plugins
from harness.methods import refusals
from harness.methods.composition import Method
from harness.methods.verbs import Composition, Control, Objective
from harness.rollout import models

Rows = list[list[str]]  # a name and a text about it
Plugins = Sequence[str]

EXAMPLES = (
    "entrobench list methods",
    "entrobench list methods --for trl",
    "entrobench list tasks --plugin my_tasks",
    "entrobench list studies",
)


def add(commands: Commands) -> None:
    parser = command(
        commands, "list", "methods, tasks, models, configs and studies that exist, one line each", EXAMPLES
    )
    parser.add_argument("what", choices=["methods", "tasks", "models", "configs", "studies"], help="which of these")
    parser.add_argument(
        "--for",
        dest="trainer",
        choices=[*refusals.REFUSALS],
        help="only methods that run in this trainer, and why others do not",
    )
    with_plugins(parser)


def call(arguments: argparse.Namespace) -> int:
    if arguments.trainer is not None and arguments.what != "methods":
        raise UserError(
            f"--for {arguments.trainer} is about methods; write entrobench list methods --for {arguments.trainer}"
        )
    if arguments.plugin and arguments.what not in ("methods", "tasks"):
        raise UserError(f"--plugin adds methods and tasks, and no {arguments.what}; leave it out")
    if arguments.what != "methods":
        groups = {arguments.what: list_others(arguments.what, arguments.plugin)}
    else:
        groups = list_methods(arguments.plugin)
    if arguments.trainer is not None:
        groups = by_trainer(groups, arguments.trainer, arguments.plugin)
    for title, rows in groups.items():
        heading = f"{len(rows)} {title}" if len(groups) > 1 else None
        terminal.show_table(console, [Column("name"), Column("about", folds=True)], rows, title=heading, names=False)
    return 0


def list_methods(plugins: Plugins) -> dict[str, Rows]:
    groups: dict[type, tuple[str, Rows]] = {
        Objective: ("objectives: a method of their own, or the base of one, as in ce_gppo+clip_b", []),
        Control: ("controls: joined to an objective by +; alone they join grpo", []),
        Composition: ("compositions: names for an objective with options or controls", []),
    }
    for name, entry in baselines.table(plugins).items():
        if isinstance(entry, Composition):
            groups[Composition][1].append([name, f"{first_line(entry.about)} Short for {entry.spec} ({entry.source})"])
        else:
            group = Objective if issubclass(entry, Objective) else Control
            groups[group][1].append([name, f"{first_line(entry.__doc__)} ({entry.source})"])
    return dict(groups.values())


def by_trainer(groups: dict[str, Rows], trainer: str, plugins: Plugins) -> dict[str, Rows]:
    """Return the groups without the methods that another trainer cannot run, and these in a group with the reasons."""
    table = baselines.table(plugins)
    running: dict[str, Rows] = {}
    refused: Rows = []
    for title, rows in groups.items():
        running[title] = []
        for name, about in rows:
            reason = refusals.REFUSALS[trainer](Method.of(name, table))
            if reason is None:
                running[title].append([name, about])
            else:
                refused.append([name, f"{name} {reason}"])
    return {**running, f"refused: methods that do not run in {trainer}": refused}


def list_others(what: str, plugins: Plugins) -> Rows:
    """Return the rows of tasks, models or configurations; of these, the first comment, and the names of the rounds."""
    if what == "tasks":
        return [[name, first_line(task.__doc__)] for name, task in tasks.task_table(plugins).items()]
    if what == "models":
        return [[name, models.resolve(name).summary()] for name in models.model_names()]
    rows = []
    paths = configs.shipped_configs() if what == "configs" else configs.study_configs()
    for name, path in paths.items():
        about = path.read_text("utf-8").splitlines()[0].removeprefix("#").strip()
        if rounds := configs.read_settings(path)["rounds"]:
            about += f" (rounds: {', '.join(rounds)})"
        rows.append([name, about])
    return rows


def first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]
