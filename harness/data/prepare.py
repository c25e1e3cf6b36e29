"""Makes problem sets from the hub's copies or from local ones: fetched, cleaned, verified, fingerprinted."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.data import clean, sources
from harness.data.cache import VERSION, card, digest_lines, find_card, fingerprint, whole, write
from harness.data.sets import CONFLICTS, OTHER_CONTEST, SETS, Problems, known


def silent(message: str) -> None:
    """Says nothing, where nobody needs to hear why it takes a while."""


def prepare(
    names: Sequence[str] = (), origin: str | None = None, say: Callable[[str], None] = silent
) -> list[dict[str, Any]]:
    """Prepares sets from `origin`, else from the environment's ENTROBENCH_DATA, else from the hub; returns their cards.

    Without names, it prepares all that the origin has. A set that was made of the same files by the same rules is left
    alone.
    """
    origin = origin or os.environ.get("ENTROBENCH_DATA") or None
    offered = sources.SOURCES if origin is None else sources.offered(origin)
    wanted = names or [name for name, entry in SETS.items() if entry.source in offered]
    if not wanted:
        raise UserError(f"{origin} holds no file that is called like one of the sets: {', '.join(SETS)}")
    needed = [known(name).source for name in wanted]  # a wrong name is refused before anything is fetched
    read = functools.cache(sources.read)  # two sets are made of one source
    locate = functools.cache(sources.locate)
    cards = []
    for name, source in zip(wanted, needed, strict=True):
        located = locate(source, origin, say)
        if not current(name, located):
            write(name, *made(name, located, read), located)
            say(f"{name}: prepared from {located.name}")
        cards.append(card(name))
    return cards


def current(name: str, located: sources.Located) -> bool:
    about = find_card(name)
    if about is None or about["version"] != VERSION or about["source"] != located.identity:
        return False
    return whole(about)


Read = Callable[[tuple[Path, ...], str], tuple[Counter[tuple[str, str]], int]]


def made(name: str, located: sources.Located, read: Read) -> tuple[dict[str, Problems], clean.Counts]:
    """Returns the problems of each split of a set, verified, and counts what became of every row that was read."""
    entry = known(name)
    problems: dict[str, Problems] = {}
    counts = clean.Counts()
    for split, paths in split_files(located.files, list(entry.splits)).items():
        raw, excluded = read(paths, sources.SOURCES[entry.source].url)
        cleaned = clean.clean(raw, entry.answer, counts, CONFLICTS if entry.source == "dapo" else ())
        problems[split], left_out = entry.select(cleaned)
        counts.rows += excluded
        counts.dropped += left_out + Counter({OTHER_CONTEST: excluded})
        verify(name, split, problems[split])
    assert counts.rows == sum(map(len, problems.values())) + counts.dropped.total(), "every row has one fate"
    return problems, counts


def split_files(paths: Sequence[Path], splits: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """Assigns the files of a set to its splits, by their names where there are several splits."""
    if len(splits) == 1:
        return {splits[0]: tuple(paths)}
    found = {split: tuple(path for path in paths if split in path.name) for split in splits}
    if not any(found.values()):
        raise UserError(f"{paths[0]} is named after no split; its name must have {' or '.join(splits)} in it")
    return {split: part for split, part in found.items() if part}


def verify(name: str, split: str, problems: Problems) -> None:
    entry = SETS[name]
    expected = entry.splits[split]
    if expected.problems not in (None, len(problems)):
        raise UserError(f"{name} {split} must have {expected.problems} problems, but this copy gives {len(problems)}")
    if expected.answers not in (None, digest_lines(problems.values())[:16]):
        raise UserError(f"this copy of {name} {split} has an answer that is not the one other copies agree on")
    if entry.fingerprint not in (None, fingerprint(problems.items())):
        raise UserError(f"this copy does not give the problems of {name} that its fingerprint stands for")
