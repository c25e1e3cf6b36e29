"""entrobench doctor: what this machine can run, and what is missing."""

from __future__ import annotations

import argparse
import json

from harness.commands.common import Commands, command, console, load


def add(commands: Commands) -> None:
    parser = command(commands, "doctor", "what this machine can run, and what is missing")
    where = "whose results folder and MLflow store are meant (default: demo)"
    parser.add_argument("config", nargs="?", default="demo", metavar="CONFIG", help=where)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="for example tracking.uri=http://server")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.set_defaults(plugin=[])


def call(arguments: argparse.Namespace) -> int:
    from harness.plan import doctor

    found = doctor.findings(load(arguments))
    if arguments.format == "json":
        print(json.dumps([vars(each) for each in found], indent=1))
    else:
        doctor.show(console, found)
    return 1 if any(each.state == doctor.BROKEN for each in found) else 0
