"""entrobench data: prepare the real problem sets, and find evaluation problems in the training set."""

from __future__ import annotations

import argparse

from rich.table import Table

from harness.base.terminal import console
from harness.commands.common import Commands, command

EXAMPLES = (
    "entrobench data prepare",
    "entrobench data prepare aime24 --from downloads/aime24.jsonl",
    "entrobench data check",
)


def add(commands: Commands) -> None:
    text = "fetch, clean, split and fingerprint the real problem sets; find evaluation problems in the training set"
    parser = command(commands, "data", text, EXAMPLES)
    actions = parser.add_subparsers(dest="action", required=True, metavar="prepare|check")
    preparing = "make the sets in the cache, from the Hub or a local copy"
    making = actions.add_parser("prepare", help=preparing, description=preparing)
    making.add_argument("sets", nargs="*", metavar="SET", help="a problem set, for example aime24 (default: all)")
    making.add_argument("--from", dest="origin", metavar="FROM", help="a local file or folder (default: the Hub)")
    checking = "list the evaluation problems that the training set contains"
    actions.add_parser("check", help=checking, description=checking)


def call(arguments: argparse.Namespace) -> int:
    if arguments.action == "prepare":
        print_preparation(arguments.sets, arguments.origin)
    else:
        print_overlaps()
    return 0


def print_preparation(names: list[str], origin: str | None) -> None:
    from tasks.data import cache, clean
    from tasks.data.prepare import prepare_sets

    table = Table("set", "problems", "rows", "left out", "repaired", "fingerprint", box=None, header_style="dim")
    for card in prepare_sets(names, origin, console.print):
        problems, dropped = sum(card["problems"].values()), sum(card["dropped"].values())
        # The prompt around each problem is not damage.
        repaired = sum(card["repaired"].values()) - card["repaired"].get(clean.UNWRAPPED, 0)
        counts = [f"{count:,}" for count in (problems, card["rows"], dropped, repaired)]
        table.add_row(card["name"], *counts, card["fingerprint"][:12])
    console.print(table)
    console.print(
        f"kept in {cache.folder()}; the .json of a set has its origin, and the rows left out with the reasons"
    )


def print_overlaps() -> None:
    from tasks.data import overlap
    from tasks.data.check import check_overlaps
    from tasks.data.sets import TRAINED

    table = Table("set", "problems", "word for word", "near", "verdict", box=None, header_style="dim")
    for name, counts in check_overlaps().items():
        numbers = [str(counts[key]) for key in ("problems", "contained", "near")]
        verdict = "contaminated" if counts["near"] else "clean"
        table.add_row(name, *numbers, verdict)
    near = f"near: half of its {overlap.N}-grams, or word for word"
    console.print(f"problems that are also in {TRAINED}; {near}")
    console.print(table)
