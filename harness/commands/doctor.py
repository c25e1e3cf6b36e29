"""entrobench doctor: the parts of entrobench that this machine can run, and the missing ones."""

from __future__ import annotations

import argparse
import json

from harness.base.terminal import console
from harness.commands.common import Commands, command, config_of_arguments, with_overrides

EXAMPLES = ("entrobench doctor", "entrobench doctor paper tracking.uri=http://server:5000 --format json")


def add(commands: Commands) -> None:
    parser = command(commands, "doctor", "what this machine can run, and what is missing", EXAMPLES)
    where = "the configuration whose results folder and MLflow store to check (default: demo)"
    parser.add_argument("config", nargs="?", default="demo", metavar="CONFIG", help=where)
    with_overrides(parser)
    parser.add_argument("--format", choices=["table", "json"], default="table", help="form of the output")
    parser.set_defaults(plugin=[])  # which config_of_arguments reads; doctor has no --plugin


def call(arguments: argparse.Namespace) -> int:
    from harness.plan import doctor

    if "=" in arguments.config:  # only overrides were given, without CONFIG
        arguments.config, arguments.overrides = "demo", [arguments.config, *arguments.overrides]
    with console.status("checking; imports take a few seconds"):
        findings = list(doctor.findings(config_of_arguments(arguments)))
    if arguments.format == "json":
        print(json.dumps([vars(finding) for finding in findings], indent=1))
    else:
        doctor.print_findings(console, findings)
    return int(any(finding.state == doctor.BROKEN for finding in findings))
