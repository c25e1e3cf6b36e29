"""The sums of what a cell has recorded, written when it is done: by them, what was cut off or changed since is seen.

The files of the trained model may be many GB. Each is read anew only if it was written since, by the time of its last
change. A model that is gone as a whole was removed by somebody who needs its room.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import file_digest
from pathlib import Path

from harness.base import files
from harness.base.errors import Damaged
from harness.record import log

FILE = "sums.json"
MODEL = "model"  # the folder of the trained model
SUMMED = (log.FILE, "evals/*.json", "samples/*.jsonl", f"{MODEL}/*")


def write(folder: Path) -> None:
    """Writes down the size and the SHA-256 of each record of a cell, and of a model's file when it was written."""
    found = {}
    for pattern in SUMMED:
        for path in sorted(folder.glob(pattern)):
            status = path.stat()
            when = [status.st_mtime_ns] if path.parent.name == MODEL else []
            found[str(path.relative_to(folder))] = [status.st_size, digest(path), *when]
    files.write_json(folder / FILE, found)


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


def noted(folder: Path) -> dict[str, tuple[int, str, int | None]]:
    """Returns what is written down of each record, by name; nothing of a cell that was done before anything was."""
    try:
        given = files.read_json(folder / FILE)
        found = {name: (int(size), str(told), next(iter(when), None)) for name, (size, told, *when) in given.items()}
    except FileNotFoundError:
        return {}
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(folder / FILE, "it must hold a size and a sum of each record") from error
    removed = not (folder / MODEL).exists()
    return {name: each for name, each in found.items() if not (removed and name.startswith(f"{MODEL}/"))}


def check_sizes(folder: Path) -> None:
    """Refuses a cell that is done where a record is missing, or not as long as it was: a look at the folder alone."""
    for name, (size, *_) in noted(folder).items():
        try:
            there = os.stat(f"{folder}/{name}").st_size  # a Path for each would take most of the time
        except FileNotFoundError:
            raise Damaged(folder / name, "it is missing") from None
        if there != size:
            raise Damaged(folder / name, f"it holds {there} bytes where {size} were written")


def changed(folder: Path) -> Iterator[tuple[Damaged, str]]:
    """Yields what is wrong with each record that is not as it was when the cell was done, with its name; this reads all
    of them, and of models what was written since."""
    try:
        found = noted(folder)
    except Damaged as damage:
        yield damage, FILE
        return
    for name, (size, told, when) in found.items():
        path = folder / name
        if not path.is_file():
            yield Damaged(path, "it is missing"), name
            continue
        status = path.stat()
        if (status.st_size, status.st_mtime_ns) != (size, when) and digest(path) != told:
            yield Damaged(path, "it is not as it was when the cell was done"), name
