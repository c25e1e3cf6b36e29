"""How far the rows of a pack were verified, and what that says of each column of the table.

*reported*: as its author says; *counts checked*: the scores follow from the counts of each problem, and no answer was
judged; *judged again*: all stored answers were judged here, and the scores follow from them; *replayed*: the first
steps of a cell were also trained again here, with the same metrics bit for bit.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.base import files
from harness.base.errors import Damaged

REPORTED, COUNTED, JUDGED, REPLAYED = "reported", "counts checked", "judged again", "replayed"

# What `entrobench verify` knows of each column of the table: recomputed from the answers, from the counts of a slim
# pack as well, repeated by a replay for its cell and steps, or stated by the author and never checked.
ANSWERS, COUNTS, REPLAY, AUTHOR = "answers", "answers or counts", "replay", "author"
ENTROPIES = ("entropy_initial", "entropy_final", "entropy_kept", "collapsed", "collapsed_share", "exploded_share")
SCORES = ("avg_at_k", "pass_at_k", "delta_to_baseline", "delta_pass_at_k")
PROMISE = {
    COUNTS: (*SCORES, "right_distinct", "coverage", "seeds_done"),
    ANSWERS: ("distinct_answers", "after_answer", "flags"),
    REPLAY: (*ENTROPIES, "dropped", "tokens", "length", "distinct", "base_model"),
    AUTHOR: ("hours", "version", "ruleset"),
}


def marks_path(digest: str) -> Path:
    """Return the file with the marks of the pack of this SHA-256.

    It lies in the user's cache and nowhere near the pack, whose sender must not be able to send it along.
    """
    return files.default_cache() / "verified" / f"{digest}.json"


def write_marks(digest: str, marks: Mapping[str, str]) -> None:
    """Write the marks of the cells of a pack; they hold for these bytes alone, and so does an earlier replay."""
    replays: dict[str, str] = {}
    with contextlib.suppress(Damaged):  # which this writes again
        replays = {cell: mark for cell, mark in marks_of_pack(digest).items() if mark.startswith(REPLAYED)}
    files.write_json(marks_path(digest), {cell: mark_of_row([marks[cell], replays.get(cell, "")]) for cell in marks})


def marks_of_pack(digest: str) -> dict[str, str]:
    """Return the marks of the cells of a pack; none if its bytes were never verified by this user."""
    path = marks_path(digest)
    try:
        marks: Any = files.read_json(path)
    except FileNotFoundError:
        return {}
    if not files.has_type(marks, dict[str, str]):
        raise Damaged(path, "it must hold a mark of each cell; `entrobench verify` writes it again")
    return marks


def mark_of_row(marks: Iterable[str]) -> str | None:
    """Return the mark of a row from those of its cells; None if they have none.

    One replayed cell marks the row, since each replay costs training; but all answers of a row are judged, or none.
    """
    known = {mark for mark in marks if mark}
    if not known:
        return None
    for weakest in (REPORTED, COUNTED):
        if weakest in known:
            return weakest
    # By their numbers: to step 10 is more than to step 9.
    return max(known - {JUDGED}, key=lambda mark: [*map(int, re.findall(r"\d+", mark))], default=JUDGED)
