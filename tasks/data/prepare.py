"""Preparation of problem sets: read, clean, verify, fingerprint, and write to the cache."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from tasks.data import clean, sources
from tasks.data.cache import VERSION, card, digest_lines, find_usable_card, fingerprint, is_intact, write_problem_set
from tasks.data.sets import CONFLICTS, SETS, Problems, problem_set


def say_nothing(message: str) -> None:
    """Discard a progress message."""


def prepare_sets(
    names: Sequence[str] = (), origin: str | None = None, say: Callable[[str], None] = say_nothing
) -> list[dict[str, Any]]:
    """Prepare problem sets and return their cards; without names, all sets that the origin contains.

    The origin is a local path, by default that in ENTROBENCH_DATA, and the Hub if neither is set. A set that was made
    from the same files by the same rules is left as it is.
    """
    # An empty path or variable counts as none.
    origin = origin or os.environ.get("ENTROBENCH_DATA") or None
    available = sources.SOURCES if origin is None else sources.available_sources(origin)
    wanted = names or [name for name, entry in SETS.items() if entry.source in available]
    if not wanted:
        raise UserError(f"{origin} contains no file that is named after one of the sets: {', '.join(SETS)}")
    needed = [problem_set(name).source for name in wanted]  # rejects a wrong name before anything is downloaded
    locate = functools.cache(sources.locate)  # dapo_math and dapo500 are made from one source, which is read once
    cards = []
    for name, source in zip(wanted, needed, strict=True):
        located = locate(source, origin, say)
        if not is_current(name, located):
            problems, counts = make_problem_set(name, located.parts)
            write_problem_set(name, problems, counts, located)
            say(f"{name}: prepared from {located.name}")
        cards.append(card(name))
    return cards


def is_current(name: str, located: sources.Located) -> bool:
    about = find_usable_card(name)
    if about is None or about["version"] != VERSION or about["source"] != located.identity:
        return False
    return is_intact(about)


def make_problem_set(name: str, parts: Mapping[str, sources.Rows]) -> tuple[dict[str, Problems], clean.Counts]:
    """Return the verified problems of each split, and the counts of kept, dropped and repaired rows."""
    entry = problem_set(name)
    conflicts = CONFLICTS if entry.source == "dapo" else ()
    problems: dict[str, Problems] = {}
    counts = clean.Counts()
    for split, raw in rows_by_split(parts, list(entry.splits)).items():
        cleaned = clean.clean(raw, entry.answer, counts, conflicts)
        problems[split], dropped = entry.select(cleaned)
        counts.dropped += dropped
        verify(name, split, problems[split])
    kept = sum(map(len, problems.values()))
    assert counts.rows == kept + counts.dropped.total(), "each row is either kept or dropped for one reason"
    return problems, counts


def rows_by_split(parts: Mapping[str, sources.Rows], splits: Sequence[str]) -> dict[str, sources.Rows]:
    """Join the rows of each split, found by the names of the parts if the set has several splits."""
    by_split: dict[str, sources.Rows] = {}
    for path, rows in parts.items():
        for split in splits:
            # The Hub's split of a set with a single split may have any name: AIME 2024 is published as "train".
            if len(splits) == 1 or split in Path(path).name:
                by_split.setdefault(split, sources.Rows()).update(rows)
    if not by_split:
        raise UserError(f"{next(iter(parts))} is not named after a split; its name must contain {' or '.join(splits)}")
    return by_split


def verify(name: str, split: str, problems: Problems) -> None:
    """Raise UserError if the problems are not those of the set."""
    entry = SETS[name]
    expected = entry.splits[split]
    if expected.problems not in (None, len(problems)):
        raise UserError(f"{name} {split} must have {expected.problems} problems, but this copy has {len(problems)}")
    if expected.answers not in (None, digest_lines(problems.values())[:16]):
        raise UserError(f"this copy of {name} {split} has an answer that differs from all other copies")
    if entry.fingerprint not in (None, fingerprint(problems.items())):
        raise UserError(f"this copy does not contain the problems of {name}: its fingerprint is different")
