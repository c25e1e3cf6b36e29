"""entrobench doctor: what this machine can run, and what is missing."""

from __future__ import annotations

import argparse
import json

from harness.commands.common import Commands, command, console, load


def add(commands: Commands) -> None:
    parser = command(commands, "doctor", "what this machine can run, and what is missing")
    where = "whose results folder and MLflow store are meant (default: demo)"
    parser.add_argument("config", nargs="?", default="demo", metavar="CONFIG", help=where)
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="for example tracking.uri=http://server"
    )
    parser.add_argument("--thorough", action="store_true", help="also try the engines, which takes some 10 seconds")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.set_defaults(plugin=[])


def call(arguments: argparse.Namespace) -> int:
    from harness.plan import doctor

    if "=" in arguments.config:  # an override, of the default
        arguments.config, arguments.overrides = "demo", [arguments.config, *arguments.overrides]
    found = doctor.findings(load(arguments), thorough=arguments.thorough)
    if arguments.format == "json":
        told = list(found)
        print(json.dumps([vars(each) for each in told], indent=1))
    else:
        told = doctor.tell(console, found)
    return 1 if any(each.state == doctor.BROKEN for each in told) else 0
