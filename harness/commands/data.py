"""entrobench data: makes the real problem sets, and tells what of them stands in the training set."""

from __future__ import annotations

import argparse

from rich.table import Table

from harness.commands.common import Commands, command, console


def add(commands: Commands) -> None:
    text = "fetch, clean, divide and fingerprint the real problem sets; and what of them stands in the training set"
    actions = command(commands, "data", text).add_subparsers(dest="action", required=True, metavar="prepare|check")
    making = actions.add_parser("prepare", help="make the sets in the cache, from the Hub or a local copy")
    making.add_argument("sets", nargs="*", metavar="SET", help="for example aime24 (default: all)")
    making.add_argument("--from", dest="origin", metavar="FROM", help="a local file or folder (default: the Hub)")
    actions.add_parser("check", help="which evaluation problems stand in the training set")


def call(arguments: argparse.Namespace) -> int:
    return prepare(arguments) if arguments.action == "prepare" else check()


def prepare(arguments: argparse.Namespace) -> int:
    from harness.data import cache, clean
    from harness.data.prepare import prepare_sets

    table = Table("set", "problems", "rows", "left out", "mended", "fingerprint", box=None, header_style="dim")
    for about in prepare_sets(arguments.sets, arguments.origin, console.print):
        counts = (sum(about["problems"].values()), about["rows"], sum(about["dropped"].values()))
        mended = sum(number for reason, number in about["repaired"].items() if reason != clean.UNWRAPPED)
        table.add_row(about["name"], *(f"{n:,}" for n in (*counts, mended)), about["fingerprint"][:12])
    console.print(table)
    console.print(f"kept in {cache.folder()}; a set's .json says where it is from, what was left out, and why")
    return 0


def check() -> int:
    from harness.data import overlap
    from harness.data.check import check_overlaps
    from harness.data.sets import TRAINED

    table = Table("set", "problems", "word for word", "near", "verdict", box=None, header_style="dim")
    for name, found in check_overlaps().items():
        numbers = (str(found[key]) for key in ("problems", "contained", "near"))
        table.add_row(name, *numbers, "contaminated" if found["near"] else "clean")
    near = f"near: half of its {overlap.N}-grams, or word for word"
    console.print(f"problems that also stand in {TRAINED}; {near}")
    console.print(table)
    return 0
