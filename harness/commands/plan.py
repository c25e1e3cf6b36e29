"""entrobench plan: cells by state, tokens, estimated time and memory, and what this machine lacks; runs nothing but the
steps that --probe measures."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import at_least
from harness.commands import run
from harness.commands.common import Commands, command, console, load, tell_outdated, with_config
from harness.config import Config, told
from harness.matrix import Cell, cells

if TYPE_CHECKING:
    from harness.plan.estimate import Plan


def add(commands: Commands) -> None:
    parser = with_config(command(commands, "plan", "cells by state, tokens, estimated time and memory; runs nothing"))
    parser.add_argument("--jobs", type=int, default=None, help="cells side by side, as on a cluster (default: as here)")
    parser.add_argument(
        "--probe", action="store_true", help="run some steps of the largest cell first, and say how far time is off"
    )


def call(arguments: argparse.Namespace) -> int:
    config = load(arguments)
    at_least(1, **{"--jobs": arguments.jobs or 1})
    plans = plan(config, arguments.jobs)
    if arguments.probe:
        for line in measured(config, plans[0]):
            console.print(line)
    return 0


def plan(config: Config, jobs: int | None = None) -> list[Plan]:
    """Prints the plan of each setting of the configuration's axes, and returns them."""
    from harness.plan import cost, estimate, show
    from harness.plan.machine import this_machine

    matrix, machine, found = cells(config), this_machine(config), []
    settings: dict[str, list[Cell]] = {}
    for cell in matrix:
        settings.setdefault(told(cell.config.setting), []).append(cell)
    cost.check_problems([here[0].config for here in settings.values()])
    for setting, here in settings.items():
        if setting:
            console.rule(setting, align="left")
        found.append(estimate.of(here[0].config, here, machine, jobs))
        show.show(console, found[-1])
    tell_outdated((each for plan in found for each in plan.progress), "`entrobench run` trains them again")
    return found


def measured(config: Config, plan: Plan) -> list[str]:
    """Runs some steps of the largest cell of a plan, and returns what that says of it."""
    from harness.launch import launcher
    from harness.launch.progress import clock
    from harness.plan import probe

    cell = probe.largest(plan, [cell for cell in cells(config) if cell.config.setting == plan.config.setting])
    with tempfile.TemporaryDirectory() as folder:
        run.check_engines([cell])
        run.fetch_models(config)
        short = probe.short(cell, Path(folder))
        with clock(console, f"measuring {cell.label}"):
            launcher.run([short], run.local(short.settled, 1), Nobody())
        return probe.told(probe.read(cell, short, plan), plan)


class Nobody:
    """Hears what happens, and says nothing of it."""

    def starting(self, running: list[Cell], waiting: int) -> None: ...

    def tick(self, running: list[Cell], waiting: int) -> None: ...

    def elsewhere(self, cell: Cell, owner: str) -> None: ...

    def ended(self, cell: Cell, reason: str | None) -> None: ...
