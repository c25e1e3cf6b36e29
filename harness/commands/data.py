"""entrobench data: prepare the real problem sets, and find evaluation problems in the training set."""

from __future__ import annotations

import argparse

from rich.table import Table

from harness.commands.common import Commands, command, console


def add(commands: Commands) -> None:
    text = "fetch, clean, divide and fingerprint the real problem sets; and what of them stands in the training set"
    actions = command(commands, "data", text).add_subparsers(dest="action", required=True, metavar="prepare|check")
    making = actions.add_parser("prepare", help="make the sets in the cache, from the hub or from a local copy")
    making.add_argument("sets", nargs="*", metavar="SET", help="for example aime24 (default: all)")
    making.add_argument("--from", dest="origin", metavar="FROM", help="a file, a folder, or the id of a hub's copy")
    actions.add_parser("check", help="which evaluation problems stand in the training set")


def call(arguments: argparse.Namespace) -> int:
    if arguments.action == "prepare":
        print_preparation(arguments.sets, arguments.origin)
    else:
        print_overlaps()
    return 0


def print_preparation(names: list[str], origin: str | None) -> None:
    from harness.data import cache, clean
    from harness.data.prepare import prepare

    table = Table("set", "problems", "rows", "left out", "repaired", "fingerprint", box=None, header_style="dim")
    for card in prepare(names, origin, console.print):
        repaired = sum(number for reason, number in card["repaired"].items() if reason != clean.UNWRAPPED)
        counts = sum(card["problems"].values()), card["rows"], sum(card["dropped"].values()), repaired
        table.add_row(card["name"], *(f"{count:,}" for count in counts), card["fingerprint"][:12])
    console.print(table)
    console.print(
        f"kept in {cache.folder()}; the .json of a set has its origin, and the rows left out with the reasons"
    )


def print_overlaps() -> None:
    from harness.data import overlap
    from harness.data.check import check
    from harness.data.sets import TRAINED

    table = Table("set", "problems", "word for word", "near", "verdict", box=None, header_style="dim")
    for name, counts in check().items():
        numbers = (str(counts[key]) for key in ("problems", "contained", "near"))
        table.add_row(name, *numbers, "contaminated" if counts["near"] else "clean")
    near = f"near: half of its {overlap.N}-grams, or word for word"
    console.print(f"problems that are also in {TRAINED}; {near}")
    console.print(table)
