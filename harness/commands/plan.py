"""entrobench plan: cells by state, tokens, estimated time and memory, and what this machine lacks.

Runs nothing except the steps that --probe measures.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import at_least
from harness.commands import run
from harness.commands.common import Commands, command, config_of_arguments, console, tell_outdated, with_config
from harness.config import Config, setting_label
from harness.matrix import Cell, cells

if TYPE_CHECKING:
    from harness.plan.estimate import Plan

EXAMPLES = ("entrobench plan demo", "entrobench plan paper 'seeds=[0,1]' --plugin my_methods --jobs 8 --probe")


def add(commands: Commands) -> None:
    text = "cells by state, tokens, estimated time and memory; runs nothing"
    parser = with_config(command(commands, "plan", text, EXAMPLES))
    parser.add_argument(
        "--jobs", type=int, default=None, help="cells side by side, as on a cluster (default: as on this machine)"
    )
    parser.add_argument(
        "--probe", action="store_true", help="run a few steps of the largest cell first, and compare their time"
    )


def call(arguments: argparse.Namespace) -> int:
    config = config_of_arguments(arguments)
    if arguments.jobs is not None:
        at_least(1, **{"--jobs": arguments.jobs})
    plans = plan_settings(config, arguments.jobs)
    if arguments.probe:
        # A probe measures one cell, so it takes the first setting alone.
        for line in probe_plan(config, plans[0]):
            console.print(line)
    return 0


def plan_settings(config: Config, jobs: int | None = None) -> list[Plan]:
    """Print the plan of each setting of the configuration's axes, and return them."""
    from harness.plan import cost
    from harness.plan.estimate import plan_for
    from harness.plan.machine import this_machine
    from harness.plan.show import show_plan

    settings: dict[str, list[Cell]] = {}
    for cell in cells(config):
        settings.setdefault(setting_label(cell.config.setting), []).append(cell)
    config_of = {setting: cells_of_setting[0].config for setting, cells_of_setting in settings.items()}
    cost.check_problem_counts(list(config_of.values()))
    machine, plans, progress = this_machine(config), [], []
    for setting, cells_of_setting in settings.items():
        if setting:
            console.rule(setting, align="left")
        plan = plan_for(config_of[setting], cells_of_setting, machine, jobs)
        show_plan(console, plan)
        plans.append(plan)
        progress += plan.progress
    tell_outdated(progress, "`entrobench run` trains them again")
    return plans


def probe_plan(config: Config, plan: Plan) -> list[str]:
    """Run a few steps of the largest cell of a plan, and return the result as text."""
    from harness.launch import launcher
    from harness.launch.progress import show_elapsed
    from harness.plan import probe

    cell = probe.largest_cell(plan)
    with tempfile.TemporaryDirectory() as folder:
        run.check_engines([cell])
        run.fetch_models(config)
        short = probe.short_cell(cell, Path(folder))
        with show_elapsed(console, f"measuring {cell.label}"):
            launcher.run_cells([short], run.local_launcher(short.settled, 1), launcher.NullWatcher())
        return probe.probe_lines(probe.read_probe(cell, short, plan), plan)
