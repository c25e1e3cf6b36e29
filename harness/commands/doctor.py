"""entrobench doctor: what this machine can run, and what is missing."""

from __future__ import annotations

import argparse
import json

from harness.commands.common import Commands, command, console, load

EXAMPLES = ("entrobench doctor", "entrobench doctor paper tracking.uri=http://server:5000 --thorough --format json")


def add(commands: Commands) -> None:
    parser = command(commands, "doctor", "what this machine can run, and what is missing", EXAMPLES)
    where = "the configuration whose results folder and MLflow store to check (default: demo)"
    parser.add_argument("config", nargs="?", default="demo", metavar="CONFIG", help=where)
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="a value in place of the file's, for example train.steps=10",
    )
    parser.add_argument("--thorough", action="store_true", help="also try the engines, which takes about 10 seconds")
    parser.add_argument("--format", choices=["table", "json"], default="table", help="form of the output")
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
