"""entrobench check: tests that a method keeps the rules on which every comparison depends."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

import baselines
from harness.base import registry
from harness.base.errors import UserError, shown
from harness.base.terminal import console
from harness.commands.common import Commands, command, with_plugins
from harness.methods.composition import Method, Table
from harness.methods.verbs import Composition

EXAMPLES = (
    "entrobench check clip_b",
    "entrobench check all --format json",
    "entrobench check 'ppo+least_sure(share=0.5)' --plugin my_methods",
)


def add(commands: Commands) -> None:
    text = "whether methods keep the rules: gradients, invariances, rare batches, memory, composition, cost"
    parser = command(commands, "check", text, EXAMPLES)
    parser.add_argument("methods", metavar="METHOD", nargs="+", help="a method, or `all` for the whole registry")
    with_plugins(parser)
    parser.add_argument("--format", choices=["table", "json"], default="table", help="form of the output")


def fault_of(spec: str, table: Table, refused: Mapping[str, UserError]) -> str | None:
    """Return why a plugin's method cannot be built, or None; raise the error if the spec itself is wrong."""
    names = [registry.parse(part)[0] for part in registry.split(spec, "+")]
    for name in names:
        if name in refused:
            return str(refused[name])
    of_plugins = [name for name in names if name in table and name not in baselines.METHODS]
    try:
        # Each class alone and without options first, so that an error is the plugin's mistake and not that of the spec.
        for name in of_plugins:
            entry = table[name]
            if not isinstance(entry, Composition):
                entry()
        if spec in of_plugins:  # without options or partners, so the mistake cannot be the user's
            Method.of(spec, table)
    except UserError as error:
        return str(error)
    except Exception as error:  # a plugin's own code may raise anything, and its row reports it
        return f"{type(error).__name__}: {error}"
    # Outside of `try`: any other mistake in the spec is the user's, and ends the command.
    Method.of(spec, table)
    return None


def call(arguments: argparse.Namespace) -> int:
    refused: dict[str, UserError] = {}
    table = baselines.table(arguments.plugin, refused)
    specs = list(dict.fromkeys(arguments.methods))
    if "all" in specs and len(specs) > 1:
        raise UserError(f"METHOD is {shown(' '.join(specs))}; `all` is the whole registry, without others")
    if specs == ["all"]:
        specs = [*table, *refused]
    faults = {spec: fault_of(spec, table, refused) for spec in specs}
    sound = [spec for spec, why in faults.items() if why is None]
    from harness.conformance import check  # imports torch, so only after the names have been checked

    report_of = {report.method: report for report in check.check_methods(sound, arguments.plugin)}
    report_of |= {spec: check.construction_failed(spec, why) for spec, why in faults.items() if why is not None}
    reports = [report_of[spec] for spec in specs]
    if arguments.format == "json":
        print(json.dumps([report.plain() for report in reports], indent=1))
    else:
        check.print_reports(console, reports)
    return int(any(report.failed for report in reports))
