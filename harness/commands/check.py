"""entrobench check: whether a method keeps the rules that every comparison rests on."""

from __future__ import annotations

import argparse
import json

import baselines
from harness.commands.common import Commands, command, console, with_plugins
from harness.composition import Method


def add(commands: Commands) -> None:
    text = "whether methods keep the rules: gradients, invariances, rare batches, memory, composition, cost"
    parser = command(commands, "check", text)
    parser.add_argument("methods", metavar="METHOD", nargs="+", help="a method, or all of the registry: all")
    with_plugins(parser)
    parser.add_argument("--format", choices=["table", "json"], default="table")


def call(arguments: argparse.Namespace) -> int:
    table = baselines.table(arguments.plugin)
    specs = list(table) if arguments.methods == ["all"] else list(dict.fromkeys(arguments.methods))
    for spec in specs:
        Method.of(spec, table)
    from harness.study import check  # from here on with torch: what is misspelled is known by now

    reports = check.reports(specs, arguments.plugin)
    if arguments.format == "json":
        print(json.dumps([each.plain() for each in reports], indent=1))
    else:
        check.show(console, reports)
    return int(any(each.failed for each in reports))
