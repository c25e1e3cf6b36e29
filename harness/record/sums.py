"""The sums of what a cell has recorded, written when it is done: by them, what was cut off or changed since is seen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from harness.base import files
from harness.base.errors import Damaged
from harness.record import log

FILE = "sums.json"
SUMMED = (log.FILE, "evals/*.json", "samples/*.jsonl")


def write(folder: Path) -> None:
    """Writes down the size and the SHA-256 of each record of a cell."""
    found = {}
    for pattern in SUMMED:
        for path in sorted(folder.glob(pattern)):
            content = path.read_bytes()
            found[str(path.relative_to(folder))] = [len(content), sha256(content).hexdigest()]
    files.write_json(folder / FILE, found)


def noted(folder: Path) -> dict[str, tuple[int, str]]:
    """Returns the size and the sum of each record, by name; nothing of a cell that was done before there were any."""
    try:
        given = files.read_json(folder / FILE)
        return {name: (int(size), str(told)) for name, (size, told) in given.items()}
    except FileNotFoundError:
        return {}
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(folder / FILE, "it must hold a size and a sum of each record") from error


def check_sizes(folder: Path) -> None:
    """Refuses a cell that is done where a record is missing, or not as long as it was: a look at the folder alone."""
    for name, (size, _) in noted(folder).items():
        try:
            there = os.stat(f"{folder}/{name}").st_size  # a Path for each would take most of the time
        except FileNotFoundError:
            raise Damaged(folder / name, "it is missing") from None
        if there != size:
            raise Damaged(folder / name, f"it holds {there} bytes where {size} were written")


def changed(folder: Path) -> Iterator[tuple[Damaged, str]]:
    """Yields what is wrong with each record that is not as it was when the cell was done, with its name; this reads all
    of them."""
    try:
        found = noted(folder)
    except Damaged as damage:
        yield damage, FILE
        return
    for name, (_, told) in found.items():
        path = folder / name
        if not path.is_file():
            yield Damaged(path, "it is missing"), name
        elif sha256(path.read_bytes()).hexdigest() != told:
            yield Damaged(path, "it is not as it was when the cell was done"), name
