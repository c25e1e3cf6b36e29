"""Arguments that name a configuration, and the console, for all commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from harness import config as configs
from harness.cells.state import OUTDATED, Progress
from harness.config import Config
from harness.matrix import Cell
from harness.terminal.layout import SafeConsole
from harness.terminal.units import plural

# Reasons and specs may hold brackets, so no markup; a file or a pipe gets one line a row.
WIDTH = None if sys.stdout.isatty() else 160
console = SafeConsole(highlight=False, soft_wrap=True, markup=False, width=WIDTH)

Commands = argparse._SubParsersAction  # the public API gives it no name


def command(commands: Commands, name: str, text: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """Add a command; `--help` and docs/commands.md show its examples, which together use each of its options."""
    epilog = "examples:\n" + "\n".join(f"  {example}" for example in examples)
    layout = argparse.RawDescriptionHelpFormatter  # keeps the lines of the epilog
    return commands.add_parser(name, help=text, description=text, epilog=epilog, formatter_class=layout)


def with_plugins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="MODULE",
        help="a Python module with further methods or tasks; may be repeated",
    )


def with_config(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of one in configs/")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="a value in place of the file's, for example train.steps=10",
    )
    with_plugins(parser)
    return parser


def tell_outdated(cells: Iterable[tuple[Cell, Progress]], what_then: str) -> None:
    """Print which cells were made by another source, and by which."""
    labels_by_reason: dict[str | None, list[str]] = {}
    for cell, now in cells:
        if now.state == OUTDATED:
            labels_by_reason.setdefault(now.reason, []).append(cell.label)
    for reason, labels in labels_by_reason.items():
        verb = "was" if len(labels) == 1 else "were"
        text = f"{plural(len(labels), 'cell')} {verb} {reason} ({', '.join(labels)}); {what_then}"
        console.print(text, style="yellow")


def load(arguments: argparse.Namespace) -> Config:
    """Return the configuration that the arguments name, with their plugins."""
    config = configs.load(arguments.config, arguments.overrides)
    config.plugins += arguments.plugin
    return config
