"""entrobench stop: ends cells of a running matrix after their present step, and keeps `run` from starting them."""

from __future__ import annotations

import argparse

from harness.base.terminal import console
from harness.cells import lease
from harness.commands.common import Commands, command, config_of_arguments, with_overrides, with_plugins
from harness.runs import stop_cells

EXAMPLES = (
    "entrobench stop demo clip_b --seed 10",
    "entrobench stop my.yaml my_method train.steps=20 --plugin my_methods",
    "entrobench stop demo clip_b --undo",
)


def add(commands: Commands) -> None:
    text = "end the cells of a method after their present step; `run` does not start them again"
    parser = command(commands, "stop", text, EXAMPLES)
    parser.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of one in configs/")
    parser.add_argument("method", metavar="METHOD", help="the method, as the configuration names it")
    with_overrides(parser)
    with_plugins(parser)
    parser.add_argument("--seed", type=int, help="only the cells of this seed")
    parser.add_argument("--undo", action="store_true", help="let `run` continue these cells from their last checkpoint")


def call(arguments: argparse.Namespace) -> int:
    cells = stop_cells(config_of_arguments(arguments), arguments.method, arguments.seed, undo=arguments.undo)
    for cell in cells:
        if arguments.undo:
            console.print(f"{cell.label}: `entrobench run` runs it")
        elif lease.holder(cell.folder):
            console.print(f"{cell.label}: ends after its present step")
        else:
            console.print(f"{cell.label}: `entrobench run` does not start it")
    if not cells:
        console.print("nothing to stop: these cells are done")
    return 0
