"""The sources of the sets: the hub's copies at pinned revisions, and the forms in which their rows are written."""

from __future__ import annotations

import fnmatch
import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harness.base import files
from harness.base.errors import UserError, nearest, short

SUFFIXES = (".parquet", ".jsonl", ".json")
BATCH = 65_536  # rows of a Parquet file in memory at once


@dataclass(frozen=True)
class Hub:
    """A data set on the Hugging Face hub, with the full revision, since the hub refuses an abbreviated one."""

    id: str
    revision: str
    files: tuple[str, ...] = ("*.parquet", "*.jsonl")


@dataclass(frozen=True)
class Source:
    hubs: tuple[Hub, ...]  # copies of the same problems; the first is the default
    names: tuple[str, ...]  # what a file or folder of it is called, in letters and digits
    url: str = ""  # rows that state a url, and not one with this, are of another contest


SOURCES = {
    "dapo": Source(
        (
            Hub("BytedTsinghua-SIA/DAPO-Math-17k", "65877096c24ffa7abc4e4fa5edb95cf3413a5674"),
            Hub("open-r1/DAPO-Math-17k-Processed", "31dd309567e3da778038cc87d868b6097a3ccf68", ("all/*.parquet",)),
        ),
        ("dapo",),
    ),
    "aime24": Source(
        (
            Hub("HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a"),
            Hub("Maxwell-Jia/AIME_2024", "8d88b2876a82a080e2f172cc9b25d0d9d2cb4792", ("*.parquet",)),
            Hub("math-ai/aime24", "83a7f387baaa524a8bda0022eac0541582297103"),
            Hub("BytedTsinghua-SIA/AIME-2024", "aa49075e24ad594b79fdf0bdcefa735c2181be67"),
        ),
        ("aime24", "aime2024"),
    ),
    "aime25": Source(
        (
            Hub("math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b"),
            Hub("MathArena/aime_2025", "c94da77eb22bbd6439e62a323bec18493a421302"),
            Hub("opencompass/AIME2025", "a6ad95f611d72cf628a80b58bd0432ef6638f958"),
            Hub("yentinglin/aime_2025", "6f71d77b0b89b9dabe07ab466c51df33f514df7f"),
        ),
        ("aime25", "aime2025"),
    ),
    "amc23": Source(
        (
            Hub("math-ai/amc23", "80815d37005feb82cd7f8fbc6901d5d3eff43057"),
            Hub("AI-MO/aimo-validation-amc", "69d78a4a2c840e82d69af6bc742bda09005f6316"),
        ),
        ("amc23", "amc2023", "validationamc"),
        url="2023_AMC",
    ),
    "math500": Source(
        (Hub("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),),
        ("math500",),
    ),
    "gsm8k": Source(
        (Hub("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866", ("main/*.parquet",)),),
        ("gsm8k",),
    ),
}

# A row's form is told by its fields: the first of these pairs of paths, to the problem and to the answer, that it has.
Path_ = tuple[str | int, ...]
FORMS: tuple[tuple[Path_, Path_], ...] = (
    (("prompt", 0, "content"), ("reward_model", "ground_truth")),
    (("prompt",), ("solution",)),
    (("problem",), ("answer",)),
    (("question",), ("answer",)),
    (("Problem",), ("Answer",)),
    (("problem",), ("solution",)),
)


@dataclass
class Located:
    """A source that was found: what tells its version from others, and its files, fetched when first needed."""

    name: str  # for people
    identity: dict[str, Any]
    fetch: Callable[[], list[Path]]

    @functools.cached_property
    def files(self) -> list[Path]:
        return self.fetch()


def squeeze(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def hubs() -> dict[str, Hub]:
    return {hub.id: hub for source in SOURCES.values() for hub in source.hubs}


def offered(origin: str) -> list[str]:
    """Returns the sources that a local file or folder, or a copy on the hub, can give."""
    if origin in hubs():
        return [name for name, source in SOURCES.items() if any(hub.id == origin for hub in source.hubs)]
    return [name for name in SOURCES if local(name, existing(origin))]


def existing(origin: str) -> Path:
    path = Path(origin).expanduser()
    if not path.exists():
        raise UserError(
            f"{origin} is neither a file or folder here nor a known copy on the hub; {nearest(origin, hubs())}"
        )
    return path


def local(source: str, path: Path) -> list[Path]:
    """Returns the files of a folder (or the file itself) that are called like a source, those nearest the top."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
    top = [file for file in files if file.parent == path or file == path]

    def called(candidates: Sequence[Path], name: Callable[[Path], str]) -> list[Path]:
        return [file for file in candidates if any(known in squeeze(name(file)) for known in SOURCES[source].names)]

    return (
        called(top, lambda file: file.name)
        or called(files, lambda file: str(file.relative_to(path)))
        or called(files, lambda file: path.name)
    )


def locate(source: str, origin: str | None, say: Callable[[str], None]) -> Located:
    """Finds a source in a local file or folder, or in a copy on the hub: that of an id, or (None) the default one."""
    if origin is not None and origin not in hubs():
        path = existing(origin)
        paths = [path] if path.is_file() else local(source, path)
        if not paths:
            raise UserError(
                f"{path} holds no file of {source}; its name must have {' or '.join(SOURCES[source].names)} in it, "
                f"and end in {', '.join(SUFFIXES)}"
            )
        sums = {file.name: files.sha256_of(file) for file in paths}
        return Located(path.name, {"files": sums}, lambda: paths)
    candidates = [hub for hub in SOURCES[source].hubs if origin in (None, hub.id)]
    if not candidates:
        raise UserError(
            f"{origin} is no copy of {source}; allowed: {', '.join(hub.id for hub in SOURCES[source].hubs)}"
        )
    hub = candidates[0]
    return Located(hub.id, {"hub": hub.id, "revision": hub.revision}, lambda: downloaded(hub, say))


def hub_failures() -> tuple[type[Exception], ...]:
    """Returns what the hub's client may raise where something is not to be had."""
    from huggingface_hub.errors import HfHubHTTPError

    # Its HTTP error derives from that of the HTTP library below it, which differs by version.
    return cast("tuple[type[Exception], ...]", (OSError, ValueError, *HfHubHTTPError.__bases__))


def downloaded(hub: Hub, say: Callable[[str], None]) -> list[Path]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # its retries; where they end in vain is told below
    say(f"fetching {hub.id} from the Hugging Face hub")
    try:
        patterns = list(hub.files)
        folder = Path(snapshot_download(hub.id, repo_type="dataset", revision=hub.revision, allow_patterns=patterns))
    except hub_failures() as error:
        raise UserError(
            f"{hub.id} is not to be had from the Hugging Face hub ({str(error).splitlines()[0].rstrip('.')}); what was "
            "prepared before stays usable, and --from reads a local copy"
        ) from error
    names = {file: str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()}
    files = [file for file, name in names.items() if any(fnmatch.fnmatch(name, pattern) for pattern in hub.files)]
    if not files:
        raise UserError(f"{hub.id} at {hub.revision} has no file {' or '.join(hub.files)}")
    return files


def step_into(row: Any, path: Path_) -> Any:
    """Returns what lies at a path, or None."""
    for step in path:
        try:
            row = row[step]
        except (KeyError, IndexError, TypeError):
            return None
    return row


def form(row: Any, where: str) -> tuple[Path_, Path_]:
    for problem, answer in FORMS:
        if isinstance(step_into(row, problem), str) and step_into(row, answer) is not None:
            return problem, answer
    fields = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
    raise UserError(
        f"{where} has no problem and answer under names that are known, such as problem and answer (docs/data.md has "
        f"all); found: {short(fields)}"
    )


def read(files: Sequence[Path], url: str = "") -> tuple[Counter[tuple[str, str]], int]:
    """Counts each (problem, answer) of the files, by first appearance, and the rows that `url` excludes.

    Counting while reading keeps memory at the size of the distinct rows: the largest copy repeats each a hundred times.
    """
    rows: Counter[tuple[str, str]] = Counter()
    excluded = 0
    for file in files:
        for problem, answer, link, number in (parquet_rows if file.suffix == ".parquet" else json_rows)(file):
            if link is not None and url not in link:
                excluded += number
            else:
                rows[problem, answer] += number
    return rows, excluded


Row = tuple[str, str, str | None, int]  # problem, answer, url, how many rows


def json_rows(file: Path) -> Iterator[Row]:
    for number, row in enumerate(json_objects(file), start=1):
        problem, answer = form(row, f"row {number} of {file}")
        yield step_into(row, problem), str(step_into(row, answer)), row.get("url"), 1


def json_objects(file: Path) -> Iterator[Any]:
    """Yields the objects of a JSON list, or of lines that are one object each.

    Only a newline ends a line, since U+2028 may stand within a string.
    """
    with open(file, "rb") as stream:
        if file.suffix == ".json" and stream.read(1) == b"[":
            stream.seek(0)
            yield from parsed(stream.read(), file, 1)
            return
        stream.seek(0)
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield parsed(line, file, number)


def parsed(text: bytes, file: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"line {line} of {file} is no JSON: {error}") from error


def parquet_rows(file: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file, pre_buffer=False)  # whole row groups ahead would take most of the memory
        head = next(table.iter_batches(batch_size=1), None)
        if head is None:
            return
        problem, answer = form(head.to_pylist()[0], str(file))
        link = ["url"] if "url" in table.schema_arrow.names else []
        columns = list(dict.fromkeys([str(problem[0]), str(answer[0]), *link]))
        for batch in table.iter_batches(BATCH, columns=columns):
            yield from distinct(batch, problem, answer, link)
    except pa.ArrowInvalid as error:
        raise UserError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


def distinct(batch: Any, problem: Path_, answer: Path_, link: list[str]) -> Iterator[Row]:
    """Yields the distinct rows of a batch by first appearance, without a Python object for each of the others."""
    import pyarrow as pa

    keys = {"problem": column(batch, problem), "answer": column(batch, answer)}
    if link:
        keys["url"] = column(batch, ("url",))
    table = pa.table(keys | {"position": pa.array(range(batch.num_rows))})
    groups = table.group_by(list(keys)).aggregate([([], "count_all"), ("position", "min")])  # in any order
    for row in groups.sort_by("position_min").to_pylist():
        answered = "" if row["answer"] is None else str(row["answer"])
        yield row["problem"] or "", answered, row.get("url"), row["count_all"]


def column(batch: Any, path: Path_) -> Any:
    import pyarrow.compute as pc

    values = batch.column(path[0])
    for step in path[1:]:
        values = pc.list_element(values, step) if isinstance(step, int) else pc.struct_field(values, step)
    return values
