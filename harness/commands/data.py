"""entrobench data: prepare the real problem sets, and find evaluation problems in the training set."""

from __future__ import annotations

import argparse

from rich.table import Table

from harness.commands.common import Commands, command, console


def add(commands: Commands) -> None:
    text = "fetch, clean, split and fingerprint the real problem sets, and look for them in the training set"
    actions = command(commands, "data", text).add_subparsers(dest="action", required=True, metavar="prepare|check")
    preparing = actions.add_parser("prepare", help="prepare sets in the cache, from the hub or from a local copy")
    preparing.add_argument("sets", nargs="*", metavar="SET", help="for example aime24 (default: all)")
    preparing.add_argument(
        "--from", dest="origin", metavar="FROM", help="a file, a folder, or the id of a copy on the hub"
    )
    actions.add_parser("check", help="which evaluation problems are also in the training set")


def call(arguments: argparse.Namespace) -> int:
    if arguments.action == "prepare":
        prepare_sets(arguments.sets, arguments.origin)
    else:
        check_overlap()
    return 0


def prepare_sets(names: list[str], origin: str | None) -> None:
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


def check_overlap() -> None:
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
