"""entrobench doctor: the parts of entrobench that this machine can run, and those that are missing."""

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

    if "=" in arguments.config:  # only overrides were given, without CONFIG
        arguments.config, arguments.overrides = "demo", [arguments.config, *arguments.overrides]
    findings = doctor.findings(load(arguments), thorough=arguments.thorough)
    if arguments.format == "json":
        every = list(findings)
        print(json.dumps([vars(finding) for finding in every], indent=1))
    else:
        every = doctor.print_findings(console, findings)
    return int(any(finding.state == doctor.BROKEN for finding in every))
