"""entrobench plan: cells by state, tokens, estimated time and memory, and what this machine lacks; runs nothing."""

from __future__ import annotations

import argparse

from harness.commands.common import Commands, command, console, load, with_config
from harness.matrix import cells


def add(commands: Commands) -> None:
    with_config(command(commands, "plan", "cells by state, tokens, estimated time and memory; runs nothing"))


def call(arguments: argparse.Namespace) -> int:
    from harness.plan import estimate, show
    from harness.plan.machine import this_machine

    config = load(arguments)
    show.show(console, estimate.of(config, cells(config), this_machine(config)))
    return 0
