"""entrobench plan: cells by state, tokens, estimated time and memory, and what this machine lacks; runs nothing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.commands.common import Commands, command, console, load, tell_outdated, with_config
from harness.config import Config, told, variants
from harness.matrix import cells

if TYPE_CHECKING:
    from harness.plan.estimate import Plan


def add(commands: Commands) -> None:
    with_config(command(commands, "plan", "cells by state, tokens, estimated time and memory; runs nothing"))


def call(arguments: argparse.Namespace) -> int:
    plan(load(arguments))
    return 0


def plan(config: Config) -> list[Plan]:
    """Prints the plan of each setting of the configuration's axes, and returns them."""
    from harness.plan import estimate, show
    from harness.plan.machine import this_machine

    matrix, found = cells(config), []
    for setting in variants(config):
        if setting.setting:
            console.rule(told(setting.setting), align="left")
        here = [cell for cell in matrix if cell.config.setting == setting.setting]
        found.append(estimate.of(setting, here, this_machine(setting)))
        show.show(console, found[-1])
    tell_outdated(matrix, "`entrobench run` runs them anew")
    return found
