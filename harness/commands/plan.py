"""entrobench plan: cells by state, tokens, estimated time and memory, and what this machine lacks.

Runs nothing except the steps that --probe measures.
"""

from __future__ import annotations

import argparse

from harness.base.errors import UserError, at_least
from harness.base.terminal import console
from harness.commands.common import Commands, command, config_of_arguments, with_config

EXAMPLES = (
    "entrobench plan demo",
    "entrobench plan paper 'seeds=[0,1]' --plugin my_methods --jobs 8 --probe",
    "entrobench plan standard --gpu 24 --length 300",
)


def add(commands: Commands) -> None:
    text = "cells by state, tokens, estimated time and memory; runs nothing"
    parser = with_config(command(commands, "plan", text, EXAMPLES))
    parser.add_argument("--jobs", type=int, help="cells side by side, as on a cluster (default: as on this machine)")
    parser.add_argument(
        "--gpu", type=float, help="gigabytes of each GPU, to plan for cards that are not in this machine"
    )
    parser.add_argument(
        "--length", type=int, help="mean tokens of a response, by which tokens and measured times follow"
    )
    parser.add_argument(
        "--probe", action="store_true", help="run a few steps of the largest cell, and estimate the time by them"
    )


def call(arguments: argparse.Namespace) -> int:
    from harness.plan.probe import measured_step, probe_lines
    from harness.plan.show import show_plans

    config = config_of_arguments(arguments)
    if arguments.jobs is not None:
        at_least(1, **{"--jobs": arguments.jobs})
    if arguments.gpu is not None:
        at_least(1, **{"--gpu": arguments.gpu})
        if arguments.probe:
            raise UserError("--gpu plans for cards that are not here, which --probe cannot measure; leave out one")
    plans = show_plans(config, arguments.jobs, arguments.gpu, arguments.length)
    if arguments.probe:
        # A probe measures one cell, so it takes the first setting alone.
        for line in probe_lines(measured_step(config, plans[0]), plans[0], arguments.length):
            console.print(line)
    return 0
