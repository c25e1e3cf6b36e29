"""Shared by the commands: the arguments that name a configuration, and the console that they print to."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable

from harness import config as configs
from harness.base.errors import UserError
from harness.cells.state import OUTDATED, Progress
from harness.config import Config
from harness.matrix import Cell
from harness.terminal.layout import SafeConsole

# Reasons and specs may hold brackets, so no markup; a file or a pipe gets one line a row.
WIDTH = None if sys.stdout.isatty() else 160
console = SafeConsole(highlight=False, soft_wrap=True, markup=False, width=WIDTH)

Commands = argparse._SubParsersAction  # the public API gives it no name


def command(commands: Commands, name: str, text: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=text, description=text)


def with_plugins(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plugin", action="append", default=[], metavar="MODULE", help="further methods and tasks")


def with_config(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("config", metavar="CONFIG", help="a YAML file, or the name of one in configs/")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="for example train.steps=10")
    with_plugins(parser)
    return parser


def tell_outdated(cells: Iterable[tuple[Cell, Progress]], what_then: str) -> None:
    """Print which cells are outdated, and why."""
    for sentence in outdated_sentences(cells):
        console.print(f"{sentence}; {what_then}", style="yellow")


def outdated_sentences(cells: Iterable[tuple[Cell, Progress]]) -> list[str]:
    """Return a sentence for each reason for which cells are outdated, with their labels."""
    labels_by_reason: dict[str | None, list[str]] = {}
    for cell, progress in cells:
        if progress.state == OUTDATED:
            labels_by_reason.setdefault(progress.reason, []).append(cell.label)
    sentences = []
    for reason, labels in labels_by_reason.items():
        number = "1 cell was" if len(labels) == 1 else f"{len(labels)} cells were"
        sentences.append(f"{number} {reason} ({', '.join(labels)})")
    return sentences


def confirm(question: str, without_terminal: str) -> bool:
    """Ask on the terminal, where only y or yes agrees; without a terminal refuse with the given sentence."""
    if not sys.stdin.isatty():
        raise UserError(without_terminal)
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def one_seed_hint(override: str) -> str | None:
    """Return a hint if an override names one seed where a number of seeds may be meant."""
    match = re.fullmatch(r"seeds=(\d+)", override)
    if match is None or int(match[1]) < 2:
        return None
    number = int(match[1])
    some = ",".join(map(str, range(min(number, 3))))
    several = f"[{some}]" if number <= 3 else f"[{some},...,{number - 1}]"
    return f"note: {override} is one seed, seed {number}; for {number} seeds write seeds={several}"


def load(arguments: argparse.Namespace) -> Config:
    """Return the configuration that the arguments name, with their plugins."""
    config = configs.load(arguments.config, arguments.overrides)
    for override in arguments.overrides:
        if hint := one_seed_hint(override):
            print(hint, file=sys.stderr)  # not among the output, which may be a table for another program
    config.plugins += arguments.plugin
    return config
