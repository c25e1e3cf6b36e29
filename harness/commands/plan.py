"""entrobench plan: cells by state, tokens, estimated time and memory, and what this machine lacks; runs nothing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.commands.common import Commands, command, console, load, tell_outdated, with_config
from harness.config import Config
from harness.matrix import cells

if TYPE_CHECKING:
    from harness.plan.estimate import Plan


def add(commands: Commands) -> None:
    with_config(command(commands, "plan", "cells by state, tokens, estimated time and memory; runs nothing"))


def call(arguments: argparse.Namespace) -> int:
    plan(load(arguments))
    return 0


def plan(config: Config) -> Plan:
    """Prints the plan, and returns it."""
    from harness.plan import estimate, show
    from harness.plan.machine import this_machine

    matrix = cells(config)
    found = estimate.of(config, matrix, this_machine(config))
    show.show(console, found)
    tell_outdated(matrix, "`entrobench run` runs them anew")
    return found
