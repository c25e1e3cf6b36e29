"""The checksums of a cell's records, written when it is done; they show later changes and cut-off files.

The files of the trained model may be many GB, so each is read again only if its time of change differs. A model whose
whole folder is gone was removed on purpose, to save space.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.base import files, seal
from harness.base.errors import Damaged
from harness.cells import log

FILE = "sums.json"  # of a cell, and of each checkpoint
CONFIG = "config.yaml"  # not in the sums: every run writes it again, and it has a seal of its own
MODEL = "model"  # the folder of the trained model
SUMMED = (log.FILE, "evals/*.json", "samples/*.jsonl", f"{MODEL}/*")
CHECKPOINTS = "checkpoints"
STEP_FOLDER = re.compile(r"step-(\d+)")


def write_checksums(folder: Path) -> None:
    """Write the size and the SHA-256 of each record of a cell, and for a model's file its time of change."""
    records = {}
    for pattern in SUMMED:
        for path in sorted(folder.glob(pattern)):
            status = path.stat()
            when = [status.st_mtime_ns] if path.parent.name == MODEL else []
            records[str(path.relative_to(folder))] = [status.st_size, files.sha256_of(path), *when]
    files.write_sealed(folder / FILE, records)


def recorded_checksums(folder: Path) -> dict[str, tuple[int, str, int | None]]:
    """Return the recorded size, checksum and, for files of the model, time of change of each record, by name."""
    path = folder / FILE
    records = files.read_sealed(path)
    if log.FILE not in records:
        raise Damaged(path, f"it has no sum of {log.FILE}")
    model_removed = not (folder / MODEL).exists()
    return {
        name: (size, checksum, when[0] if when else None)
        for name, (size, checksum, *when) in records.items()
        if not (model_removed and name.startswith(f"{MODEL}/"))
    }


def check_sizes(folder: Path) -> None:
    """Refuse a finished cell with a missing record or one of another length; no record is read."""
    for name, (size, *_) in recorded_checksums(folder).items():
        try:
            present = os.stat(f"{folder}/{name}").st_size  # a Path for each would take most of the time
        except FileNotFoundError:
            raise Damaged(folder / name, "it is missing") from None
        if present != size:
            raise Damaged(folder / name, f"it holds {present} bytes where {size} were written")


def changed_records(folder: Path) -> Iterator[tuple[Damaged, str]]:
    """Yield the damage to each record that changed since the cell was done, with its name.

    This reads all records, but of the model only the files whose time of change differs.
    """
    try:
        seal.open_yaml(files.read_present(folder / CONFIG), folder / CONFIG)
    except Damaged as damage:
        yield damage, CONFIG
    try:
        records = recorded_checksums(folder)
    except Damaged as damage:
        yield damage, FILE
        return
    for name, (size, checksum, when) in records.items():
        path = folder / name
        if not path.is_file():
            yield Damaged(path, "it is missing"), name
            continue
        status = path.stat()
        # Only files of the model have a recorded time; for all others `when` is None, so they are always read.
        if (status.st_size, status.st_mtime_ns) != (size, when) and files.sha256_of(path) != checksum:
            yield Damaged(path, "it is not as it was when the cell was done"), name


# Checkpoints: a seal names the cell, the step, and the checksums of the files


def step_folder_name(step: int) -> str:
    return f"step-{step:06d}"


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, by the name of its folder."""
    match = STEP_FOLDER.fullmatch(path.name)
    assert match
    return int(match[1])


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the oldest first."""
    named = [path for path in folder.glob("step-*") if STEP_FOLDER.fullmatch(path.name)]
    return sorted(named, key=step_of)  # not by name, which has six digits only up to step 999,999


def write_seal(path: Path, cell: str, step: int, sums: Mapping[str, str]) -> None:
    files.write_sealed(path / FILE, {"cell": cell, "step": step, "files": dict(sums)})


def read_seal(path: Path, cell: str) -> dict[str, str]:
    """Return the sums of a checkpoint's files; refuse one of another cell or step, or with other files."""
    record = files.read_sealed(path / FILE)
    sums: dict[str, str] = record["files"]
    if record["cell"] != cell:
        raise Damaged(path, f"it is of the cell {record['cell']}, not of {cell}")
    if step_folder_name(record["step"]) != path.name:
        raise Damaged(path, f"it is of step {record['step']}")
    present = {entry.relative_to(path).as_posix() for entry in path.rglob("*") if entry.is_file()}
    other = sums.keys() ^ (present - {FILE})
    if other:
        raise Damaged(path, f"{', '.join(sorted(other))} should not be there, or is missing")
    return sums
