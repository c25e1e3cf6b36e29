"""The seal of a checkpoint: its cell, its step, and the checksums of its files; no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.base import files, seal
from harness.base.errors import Damaged

FOLDER = "checkpoints"
FILE = "sums.json"
NAME = re.compile(r"step-(\d+)")


def step_folder_name(step: int) -> str:
    return f"step-{step:06d}"


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, by the name of its folder."""
    match = NAME.fullmatch(path.name)
    assert match
    return int(match[1])


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the oldest first."""
    named = [path for path in folder.glob("step-*") if NAME.fullmatch(path.name)]
    return sorted(named, key=step_of)  # not by name, which has six digits only up to step 999,999


def write_seal(path: Path, cell: str, step: int, sums: Mapping[str, str]) -> None:
    text = json.dumps({"cell": cell, "step": step, "files": dict(sums)})
    files.write_text(path / FILE, seal.close_json(text))


def read_seal(path: Path, cell: str) -> dict[str, str]:
    """Return the sums of a checkpoint's files; refuse one of another cell or step, or with other files."""
    try:
        record = json.loads(seal.open_json((path / FILE).read_bytes(), path / FILE))
    except FileNotFoundError:
        raise Damaged(path / FILE, "it is missing") from None
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


def changed_files(path: Path, sums: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Return the files among these that changed since the checkpoint was written."""
    return [name for name in names if files.sha256_of(path / name) != sums[name]]


def is_whole_checkpoint(path: Path, cell: str) -> bool:
    """Return whether a checkpoint is this cell's and unchanged; this reads all of it."""
    try:
        sums = read_seal(path, cell)
    except Damaged:
        return False
    return not changed_files(path, sums, sums)
