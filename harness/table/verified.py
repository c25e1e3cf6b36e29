"""How far the rows of a pack were verified, as `entrobench verify` writes it next to the pack.

*reported*: as its author says; *judged again*: all stored answers were judged here, and the scores follow from them;
*replayed*: the first steps of a cell were also trained again here, with the same metrics bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.base import files
from harness.base.errors import Damaged

REPORTED, JUDGED, REPLAYED = "reported", "judged again", "replayed"
MARKS = (REPORTED, JUDGED, REPLAYED)
CHECKED_TAG = "checked"  # of a run that a pack gives


def marks_path(pack: Path) -> Path:
    return pack.with_name(f"{pack.name}.verified.json")


def write_marks(pack: Path, digest: str, marks: Mapping[str, str]) -> None:
    """Write the marks of the cells of a pack next to it; they hold for these bytes of the pack alone."""
    files.write_json(marks_path(pack), {"sha256": digest, "cells": dict(marks)})


def marks_of_pack(pack: Path, digest: str) -> dict[str, str]:
    """Return the marks of the cells of a pack; all cells are as reported if it was not verified, or has changed."""
    path = marks_path(pack)
    try:
        record: Any = files.read_json(path)
    except FileNotFoundError:
        return {}
    except Damaged:
        record = None
    cells = record.get("cells") if isinstance(record, dict) else None
    if not isinstance(cells, dict) or not set(cells.values()) <= set(MARKS):
        raise Damaged(path, "it must hold sha256, and a mark of each cell; `entrobench verify` writes it again")
    if record.get("sha256") != digest:
        return {}
    return cells


def mark_of_row(marks: Iterable[str]) -> str | None:
    """Return the mark of a row from those of its cells; None if they have none.

    One replayed cell marks the row, since each replay costs training; but all answers of a row are judged, or none.
    """
    known = {mark for mark in marks if mark}
    if not known:
        return None
    if REPORTED in known:
        return REPORTED
    if REPLAYED in known:
        return REPLAYED
    return JUDGED
