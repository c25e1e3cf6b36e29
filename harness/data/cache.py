"""The prepared problem sets in the cache: a Parquet file and a card each; imports no torch.

The card names the file and is written last. So whatever stops a preparation, the card that is there names a file that
is whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.base import files
from harness.base.errors import UserError, nearest
from harness.base.locks import lock
from harness.data import clean, sources
from harness.data.sets import SETS, Problems, known

VERSION = 1  # of the rules of cleaning; a new one makes every set anew


def folder() -> Path:
    return files.default_cache() / "data"


def find_card(name: str) -> dict[str, Any] | None:
    known(name)
    path = folder() / f"{name}.json"
    return files.read_json(path) if path.exists() else None


def card(name: str) -> dict[str, Any]:
    """Returns what is known of a prepared set: source, fingerprints, rows read and dropped, repairs, overlaps."""
    found = find_card(name)
    if found is None:
        raise UserError(f"the problem set {name} is not prepared; run `entrobench data prepare {name}`")
    return found


def keep_card(about: Mapping[str, Any]) -> None:
    files.write_text(folder() / f"{about['name']}.json", json.dumps(about, indent=1))


def rows(name: str, split: str = "test") -> list[dict[str, str]]:
    """Returns the problems of a prepared set, each with id, problem, answer and source."""
    import pyarrow.parquet as pq

    about, splits = card(name), known(name).splits
    if split not in splits:
        raise UserError(f"{name} has no split {split!r}; {nearest(split, splits)}")
    if split not in about["problems"]:
        raise UserError(
            f"{name} was prepared from a copy without its split {split}; "
            f"run `entrobench data prepare {name}` with a whole one"
        )
    if not whole(about):
        raise UserError(f"the file of {name} in {folder()} is damaged; run `entrobench data prepare {name}`")
    table = pq.read_table(folder() / about["file"], filters=[("split", "=", split)])
    return table.drop_columns(["split"]).to_pylist()


def whole(about: Mapping[str, Any]) -> bool:
    path = folder() / about["file"]
    return path.exists() and files.sha256_of(path) == about["sha256"]


def fingerprint(problems: Iterable[tuple[str, str]]) -> str:
    """Returns a digest of problems with their answers that ignores their order and white space."""
    return digest_lines(json.dumps([clean.fold(problem), answer]) for problem, answer in problems)


def digest_lines(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def write(name: str, problems: Mapping[str, Problems], counts: clean.Counts, located: sources.Located) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [
        {"id": f"{SETS[name].source}-{clean.digest(problem)[:12]}", "problem": problem, "answer": answer}
        | {"source": located.name, "split": split}
        for split, part in problems.items()
        for problem, answer in part.items()
    ]
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records), buffer)
    content = buffer.getvalue().to_pybytes()
    sha256 = hashlib.sha256(content).hexdigest()
    content_print = fingerprint(item for part in problems.values() for item in part.items())
    about = {
        "name": name,
        "version": VERSION,
        "source": located.identity,
        "file": f"{name}-{sha256[:12]}.parquet",
        "sha256": sha256,
        "fingerprint": content_print,
        "problems": {split: len(part) for split, part in problems.items()},
        "rows": counts.rows,
        "dropped": dict(+counts.dropped),
        "repaired": dict(counts.repaired),
    }
    try:
        folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the cache {folder()} cannot be written ({error.strerror}); set ENTROBENCH_CACHE") from error
    with lock(folder() / f"{name}.lock"):
        before = find_card(name)
        same = before is not None and before["fingerprint"] == content_print
        with files.atomic(folder() / str(about["file"])) as file:
            file.write(content)
        keep_card(about | {"overlap": before["overlap"] if before and same else {}})
        for pattern in (f"{name}-*.parquet", f".{name}[-.]*"):  # of other versions, and what a killed process left
            for old in folder().glob(pattern):
                if old.name != about["file"]:
                    old.unlink()
