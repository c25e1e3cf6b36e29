"""The cache of prepared problem sets: for each, a Parquet file and a JSON card; imports no torch.

The card names its Parquet file and is written last. So if a preparation is interrupted at any point, the card on disk
still names a complete file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.base import files
from harness.base.errors import Damaged, UserError, nearest
from harness.base.locks import lock
from harness.base.task import Task
from tasks.data import clean, sources
from tasks.data.sets import SETS, Problems, problem_set

VERSION = 1  # of the cleaning rules; with a new version every set is prepared again


def folder() -> Path:
    return files.default_cache() / "data"


def find_card(name: str) -> dict[str, Any] | None:
    problem_set(name)
    path = folder() / f"{name}.json"
    try:
        return files.read_json(path) if path.exists() else None
    except Damaged as error:
        raise Damaged(path, f"it is not JSON; run `entrobench data prepare {name}`") from error


def find_usable_card(name: str) -> dict[str, Any] | None:
    """Return the card of a set for a preparation, to which a damaged one is a missing one."""
    with suppress(Damaged):
        return find_card(name)
    return None


def card(name: str) -> dict[str, Any]:
    """Return the card of a prepared set: source, fingerprints, rows read and dropped, repairs, overlaps."""
    about = find_card(name)
    if about is None:
        raise UserError(f"the problem set {name} is not prepared; run `entrobench data prepare {name}`")
    return about


def keep_card(about: Mapping[str, Any]) -> None:
    files.write_text(folder() / f"{about['name']}.json", json.dumps(about, indent=1))


def problem_rows(name: str, split: str = "test") -> list[dict[str, str]]:
    """Return the problems of a prepared set as rows with id, problem, answer and source."""
    import pyarrow.parquet as pq

    about, splits = card(name), problem_set(name).splits
    if split not in splits:
        raise UserError(f"{name} has no split {split!r}; {nearest(split, splits)}")
    if split not in about["problems"]:
        raise UserError(
            f"{name} was prepared from a copy without the split {split}; "
            f"run `entrobench data prepare {name}` with a complete copy"
        )
    if not is_intact(about):
        raise UserError(f"the file of {name} in {folder()} is damaged; run `entrobench data prepare {name}`")
    table = pq.read_table(folder() / about["file"], filters=[("split", "=", split)])
    return table.drop_columns(["split"]).to_pylist()


def is_intact(about: Mapping[str, Any]) -> bool:
    """Return whether the Parquet file of a card has the checksum that the card records."""
    path = folder() / about["file"]
    return path.exists() and files.sha256_of(path) == about["sha256"]


def fingerprint(problems: Iterable[tuple[str, str]]) -> str:
    """Return a digest of (problem, answer) pairs that ignores order and white space."""
    return digest_lines(json.dumps([clean.fold(problem), answer]) for problem, answer in problems)


def digest_lines(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def write_problem_set(
    name: str, problems: Mapping[str, Problems], counts: clean.Counts, located: sources.Located
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = []
    pairs: list[tuple[str, str]] = []
    for split, part in problems.items():
        pairs += part.items()
        for problem, answer in part.items():
            identifier = f"{SETS[name].source}-{clean.problem_digest(problem)[:12]}"
            record = {"id": identifier, "problem": problem, "answer": answer, "source": located.name, "split": split}
            records.append(record)
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records), buffer)
    content = buffer.getvalue().to_pybytes()
    sha256 = hashlib.sha256(content).hexdigest()
    content_print = fingerprint(pairs)
    about = {
        "name": name,
        "version": VERSION,
        "source": located.identity,
        "file": f"{name}-{sha256[:12]}.parquet",
        "sha256": sha256,
        "fingerprint": content_print,
        "problems": {split: len(part) for split, part in problems.items()},
        "rows": counts.rows,
        "dropped": dict(+counts.dropped),  # + leaves out counts of 0
        "repaired": dict(counts.repaired),
    }
    files.make_cache_folder(folder())
    with lock(folder() / f"{name}.lock"):
        before = find_usable_card(name)
        is_same = before is not None and before["fingerprint"] == content_print
        with files.atomic(folder() / str(about["file"])) as file:
            file.write(content)
        # Equal problems keep their overlaps: a check of DAPO takes seconds.
        keep_card(about | {"overlap": before["overlap"] if before and is_same else {}})
        # Files of earlier versions, and temporary files of a process that was killed.
        for pattern in (f"{name}-*.parquet", f".{name}[-.]*"):
            for old in folder().glob(pattern):
                if old.name != about["file"]:
                    old.unlink()


# Problems of DAPO-Math-17k. It is the only set whose size depends on the copy, so the size is unknown until it is
# prepared.
UNKNOWN_SET = 17_000


def problem_count(task: Task, split: str) -> tuple[int, bool]:
    """Return the highest number of problems in a split, and whether that is known or assumed."""
    if task.name not in SETS:
        return len(task.problems(split)), True
    card = find_card(task.name)
    if split == "validation" and card is not None and is_intact(card):  # a part whose size no card states
        return len(task.problems(split)), True
    part = "test" if split == "test" else "train"  # validation problems are part of train
    stated = card["problems"].get(part) if card else SETS[task.name].splits[part].problems
    if not stated:
        return UNKNOWN_SET, False
    return stated, True
