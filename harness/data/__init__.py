"""The real problem sets: prepared once into a cache, cleaned and fingerprinted, and read from there; imports no torch.

A set is one Parquet file and one card. The card names the file, and is written last: whatever stops a preparation, the
card that is there names a file that is whole.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from harness.base import files
from harness.config import UserError, nearest
from harness.data import clean, overlap, sources

VERSION = 1  # of the rules of cleaning; a new one makes every set anew
TRAINED = "dapo_math"
# DAPO500 is the problems whose digest begins below this: the 500 smallest of the 17,173 that are clean. As a bound and
# not a rank, whether a problem is held out depends on its own text alone, in whatever copy it is met.
HELD_OUT_BELOW = "0796"
# Digests of the twelve problems that DAPO-Math-17k gives two answers; copies that dropped duplicates have only one.
CONFLICTS = (
    *("05b99618261b", "0bb97ecc1906", "11b94562acc8", "3c2ec6515636", "6fa8d42e2a4f", "a20fbdd4e8bb"),
    *("b0f8eb4a4f1f", "bc61a06cdc44", "d5740f7a71d1", "dc242b727392", "e8fbbe37f15f", "f97971b8d282"),
)
HELD_OUT, NOT_HELD_OUT, NEAR_HELD_OUT = "held out as dapo500", "for training", "near copy of a problem held out"
OTHER_CONTEST = "of another contest"
DAPO500 = "e525a98f6b8d71b0d2cc391a440f0e1f7ffc596e481f55bdf6f60312913ce455"  # fingerprint of what is held out


@dataclass(frozen=True)
class Split:
    problems: int | None = None  # None: as many as there are
    answers: str | None = None  # digest of the answers that the good copies agree on; there are copies with a wrong one


Problems = dict[str, str]  # problem -> answer
Selection = tuple[Problems, Counter[str]]  # what is kept, and how many are not, by reason


def everything(problems: Problems) -> Selection:
    return problems, Counter()


def divided(problems: Problems) -> tuple[Problems, Problems]:
    """What is held out, and the rest; both in an order that does not depend on the copy they were read from."""
    digests = {problem: clean.digest(problem) for problem in problems}
    ordered = sorted(problems, key=digests.__getitem__)
    held = {problem: problems[problem] for problem in ordered if digests[problem] < HELD_OUT_BELOW}
    return held, {problem: problems[problem] for problem in ordered if problem not in held}


def held_out(problems: Problems) -> Selection:
    held, rest = divided(problems)
    return held, Counter({NOT_HELD_OUT: len(rest)})


def for_training(problems: Problems) -> Selection:
    """All but what is held out, and but what says the same in other words: a third of dapo500 has such a copy."""
    held, rest = divided(problems)
    texts = list(rest)
    near = {texts[match.trained] for match in overlap.matches(list(held), texts)}
    kept = {problem: answer for problem, answer in rest.items() if problem not in near}
    return kept, Counter({HELD_OUT: len(held), NEAR_HELD_OUT: len(near)})


@dataclass(frozen=True)
class Set:
    """One problem set: where its rows are from, what its splits must have, and which clean problems are its own."""

    source: str
    splits: Mapping[str, Split]
    answer: Callable[[str], str | None] = clean.integer
    select: Callable[[Problems], Selection] = everything
    fingerprint: str | None = None  # None: good copies may be worded differently


SETS = {
    "dapo_math": Set("dapo", {"train": Split()}, select=for_training),
    "dapo500": Set("dapo", {"test": Split(500)}, select=held_out, fingerprint=DAPO500),
    "aime24": Set("aime24", {"test": Split(30, "26b2e319e14bdec5")}),
    "aime25": Set("aime25", {"test": Split(30, "a0239316151158f3")}),
    "amc23": Set("amc23", {"test": Split(40, "395f5c1282d3240d")}),
    "math500": Set("math500", {"test": Split(500, "4563c132723345af")}, clean.verbatim),
    "gsm8k": Set("gsm8k", {"train": Split(7473, "36dad10be52d1e6d"), "test": Split(1319, "a7866b369c33070b")}),
}


def silent(message: str) -> None:
    """Where nobody needs to hear why it takes a while."""


def known(name: str) -> Set:
    if name not in SETS:
        raise UserError(f"unknown problem set {name!r}; {nearest(name, SETS)}")
    return SETS[name]


def folder() -> Path:
    return files.default_cache() / "data"


def find_card(name: str) -> dict[str, Any] | None:
    known(name)
    path = folder() / f"{name}.json"
    return files.read_json(path) if path.exists() else None


def card(name: str) -> dict[str, Any]:
    """What is known of a prepared set: source, fingerprints, rows in, rows dropped and why, repairs, overlaps."""
    found = find_card(name)
    if found is None:
        raise UserError(f"the problem set {name} is not prepared; run `entrobench data prepare {name}`")
    return found


def keep_card(about: Mapping[str, Any]) -> None:
    files.write_text(folder() / f"{about['name']}.json", json.dumps(about, indent=1))


def rows(name: str, split: str = "test") -> list[dict[str, str]]:
    """The problems of a prepared set, each with id, problem, answer and source."""
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
    return path.exists() and sources.sha256(path) == about["sha256"]


def fingerprint(problems: Iterable[tuple[str, str]]) -> str:
    """Of problems and answers, whatever their order and white space."""
    return digest_lines(json.dumps([clean.fold(problem), answer]) for problem, answer in problems)


def digest_lines(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def prepare(
    names: Sequence[str] = (), origin: str | None = None, say: Callable[[str], None] = silent
) -> list[dict[str, Any]]:
    """Prepare sets from `origin`, else from the environment's ENTROBENCH_DATA, else from the hub; their cards.

    By default all that the origin has. What is there already, of the same files by the same rules, is left alone.
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
    """The problems of each split of a set, verified, and the fate of every row that was read for it."""
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
    """Of a set with several splits, a file belongs to the one that it is named after."""
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
    with FileLock(folder() / f"{name}.lock"):
        before = find_card(name)
        same = before is not None and before["fingerprint"] == content_print
        with files.atomic(folder() / str(about["file"])) as file:
            file.write(content)
        keep_card(about | {"overlap": before["overlap"] if before and same else {}})
        for pattern in (f"{name}-*.parquet", f".{name}[-.]*"):  # of other versions, and what a killed process left
            for old in folder().glob(pattern):
                if old.name != about["file"]:
                    old.unlink()


def check() -> dict[str, dict[str, Any]]:
    """How much of each prepared evaluation set stands in the training set; kept in the cards."""
    trained, about = rows(TRAINED, "train"), card(TRAINED)
    tested = {name: rows(name) for name in SETS if "test" in (find_card(name) or {"problems": ()})["problems"]}
    flat = [(name, row) for name, part in tested.items() for row in part]
    found: dict[str, list[overlap.Match]] = {name: [] for name in tested}
    for match in overlap.matches([row["problem"] for _, row in flat], [row["problem"] for row in trained]):
        found[flat[match.evaluated][0]].append(match)
    results = {}
    for name, matches in found.items():
        results[name] = {
            "fingerprint": about["fingerprint"],
            "problems": len(tested[name]),
            "contained": len({match.evaluated for match in matches if match.contained}),
            "near": len({match.evaluated for match in matches}),
            "pairs": [[flat[m.evaluated][1]["id"], trained[m.trained]["id"], round(m.share, 3)] for m in matches],
        }
        with FileLock(folder() / f"{name}.lock"):
            evaluated = card(name)
            evaluated["overlap"][TRAINED] = results[name]
            keep_card(evaluated)
    return results


def flags(name: str) -> list[str]:
    """What a reader of results on this set must know of its overlap with the training set; empty if there is none."""
    about, trained = card(name), find_card(TRAINED)
    if trained is None or "test" not in about["problems"]:
        return []
    found = about["overlap"].get(TRAINED)
    if found is None or found["fingerprint"] != trained["fingerprint"]:
        return [f"overlap with {TRAINED} unknown, `entrobench data check` tells"]
    if not found["near"]:
        return []
    numbers = f"{found['near']} of {found['problems']} problems stand in {TRAINED}"
    return [f"contaminated: {numbers}, {found['contained']} of them word for word"]
