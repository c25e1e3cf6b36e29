"""The rows of problem sets, from pinned data sets on the Hugging Face Hub or from local copies."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base import files
from harness.base.errors import UserError, short
from harness.base.hub import hub_errors, hub_reason

if TYPE_CHECKING:
    import pyarrow

SUFFIXES = (".parquet", ".jsonl", ".json")
BATCH = 65_536  # rows in memory at a time
BEGINNING = 1024  # bytes of a file in which a list of JSON begins
LIST = re.compile(rb"(\xef\xbb\xbf)?\s*\[")  # after the byte order mark of Windows, and white space

Rows = Counter[tuple[str, str]]  # (problem, answer) -> number of rows, in the order of first appearance
Steps = tuple[str | int, ...]  # keys and indices that lead to a value in a row


@dataclass(frozen=True)
class Source:
    """A data set on the Hub at one revision, and the names by which local copies of it are recognized."""

    hub_id: str
    revision: str  # in full: the Hub rejects abbreviated revisions
    names: tuple[str, ...]  # parts of a file or folder name, in lower-case letters and digits
    options: Mapping[str, Any] = field(default_factory=dict)  # of datasets.load_dataset


SOURCES = {
    "dapo": Source(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        "65877096c24ffa7abc4e4fa5edb95cf3413a5674",
        ("dapo",),
        # By default a batch is a whole row group, and this data set has 1.79 million rows.
        {"batch_size": BATCH},
    ),
    "aime24": Source(
        "HuggingFaceH4/aime_2024",
        "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        ("aime24", "aime2024"),
    ),
    "aime25": Source(
        "math-ai/aime25",
        "563bb8404243c5f09de6ec262f2db674fe5bce9b",
        ("aime25", "aime2025"),
    ),
    "amc23": Source(
        "math-ai/amc23",
        "80815d37005feb82cd7f8fbc6901d5d3eff43057",
        ("amc23", "amc2023"),
    ),
    "math500": Source(
        "HuggingFaceH4/MATH-500",
        "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        ("math500",),
    ),
    "gsm8k": Source(
        "openai/gsm8k",
        "740312add88f781978c0658806c59bc2815b9866",
        ("gsm8k",),
        {"name": "main"},  # the other configuration, "socratic", has the same problems with longer solutions
    ),
}

# The places of the problem and the answer in a row. Copies of a set name their fields differently; the first pair that
# a row has is used. A short answer comes before a worked solution, since several copies have both.
FORMS: tuple[tuple[Steps, Steps], ...] = (
    (("prompt", 0, "content"), ("reward_model", "ground_truth")),
    (("prompt",), ("solution",)),
    (("problem",), ("answer",)),
    (("question",), ("answer",)),
    (("Problem",), ("Answer",)),
    (("problem",), ("solution",)),
)
COLUMNS = {steps[0] for steps in itertools.chain(*FORMS)}


@dataclass
class Located:
    """A source that was found on the Hub or on this machine. Its rows are read when they are first needed."""

    name: str  # for people
    identity: dict[str, Any]  # copies with equal identities have equal rows
    read_parts: Callable[[], dict[str, Rows]]

    @functools.cached_property
    def parts(self) -> dict[str, Rows]:
        """The rows by path of the file, or by name of the split on the Hub."""
        return self.read_parts()


def locate(name: str, origin: str | None, say: Callable[[str], None]) -> Located:
    """Find a source on the Hub (`origin` is None) or in a local file or folder."""
    source = SOURCES[name]
    if origin is None:
        identity = {"hub": source.hub_id, "revision": source.revision}
        return Located(source.hub_id, identity, lambda: read_hub(source, say))
    path = existing_path(origin)
    paths = [path] if path.is_file() else local_files(name, path)
    if not paths:
        raise UserError(
            f"{path} contains no file of {name}; its name must contain {' or '.join(source.names)} "
            f"and end in {', '.join(SUFFIXES)}"
        )
    checksums = {file.name: files.sha256_of(file) for file in paths}

    def read_paths() -> dict[str, Rows]:
        return {str(file): read_file(file) for file in paths}

    return Located(path.name, {"files": checksums}, read_paths)


def available_sources(origin: str) -> list[str]:
    """Return the names of the sources that a local file or folder contains."""
    path = existing_path(origin)
    return [name for name in SOURCES if local_files(name, path)]


def existing_path(origin: str) -> Path:
    path = Path(origin).expanduser()
    if not path.exists():
        raise UserError(
            f"--from or ENTROBENCH_DATA is {origin!r}, which is not a local file or folder; download another copy from "
            "the Hub first"
        )
    return path


def local_files(name: str, path: Path) -> list[Path]:
    """Return the files of a source: those with its name at the top of the folder, else deeper, else all of them.

    All of them only if the folder itself is named after the source, such as the download of one data set.
    """
    if path.is_file():
        return [path] if is_named(name, path.name) else []
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
    top, deeper = [], []
    for file in files:
        if file.parent == path and is_named(name, file.name):
            top.append(file)
        if is_named(name, str(file.relative_to(path))):
            deeper.append(file)
    if top or deeper:
        return top or deeper
    return files if is_named(name, path.name) else []


def is_named(source: str, text: str) -> bool:
    letters_and_digits = re.sub(r"[^a-z0-9]", "", text.lower())
    return any(name in letters_and_digits for name in SOURCES[source].names)


# Reading


def read_hub(source: Source, say: Callable[[str], None]) -> dict[str, Rows]:
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs errors that it also raises
    say(f"downloading {source.hub_id} from the Hugging Face Hub")
    try:
        # Streaming: otherwise 1.79 million rows of DAPO would be written to disk a second time, as an Arrow file.
        splits = datasets.load_dataset(source.hub_id, revision=source.revision, streaming=True, **source.options)
        rows_by_split = {}
        for split, dataset in splits.items():
            batches = dataset.with_format("arrow").iter(BATCH)
            rows_by_split[split] = count_rows(batches, source.hub_id)
        return rows_by_split
    except UserError:
        raise
    except hub_errors() as error:
        raise UserError(
            f"could not download {source.hub_id} from the Hugging Face Hub ({hub_reason(error)}); sets that were "
            "prepared before remain usable, and --from reads a local copy"
        ) from error


def read_file(file: Path) -> Rows:
    # JSON is not read by `datasets`, whose type inference changes answers: one integer of more than 64 bits turns a
    # column into floats.
    if file.suffix != ".parquet":
        return read_json_rows(file)
    return count_rows(parquet_batches(file, COLUMNS), str(file))


def read_json_rows(file: Path) -> Rows:
    counts: Rows = Counter()
    for number, row in enumerate(json_objects(file), start=1):
        problem, answer = form_of(row, f"row {number} of {file}")
        counts[follow_steps(row, problem), str(follow_steps(row, answer))] += 1
    return counts


def json_objects(file: Path) -> Iterator[Any]:
    """Yield the objects of a JSON list, or of a file with one object on each line."""
    with open(file, "rb") as stream:
        if file.suffix.lower() == ".json" and LIST.match(stream.read(BEGINNING)):
            stream.seek(0)
            yield from parse_json(stream.read(), file, 1)
            return
        stream.seek(0)
        # A binary file is split at newlines only. As text, the U+2028 in a string of GSM8K would end a line.
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield parse_json(line, file, number)


def parse_json(text: bytes, file: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"line {line} of {file} is not valid JSON: {error}") from error


def parquet_batches(file: Path, known: Collection[str | int] = ()) -> Iterator[pyarrow.RecordBatch]:
    """Yield a file's rows with their known columns.

    Without any of them all are read, so that a refusal can name them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Without pre_buffer=False, Arrow reads whole row groups ahead: most of the memory of a preparation.
        table = pq.ParquetFile(file, pre_buffer=False)
        columns = [name for name in table.schema_arrow.names if name in known]
        yield from table.iter_batches(BATCH, columns=columns or None)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


def count_rows(batches: Iterable[pyarrow.RecordBatch | pyarrow.Table], where: str) -> Rows:
    """Count the rows of Arrow batches without a Python object for each row."""
    counts: Rows = Counter()
    form: tuple[Steps, Steps] | None = None
    for batch in batches:
        form = form or form_of(batch.slice(0, 1).to_pylist()[0], where)
        for row in distinct_rows(batch, *form):
            answer = "" if row["answer"] is None else str(row["answer"])
            counts[row["problem"] or "", answer] += row["count_all"]
    return counts


def distinct_rows(batch: Any, problem: Steps, answer: Steps) -> list[dict[str, Any]]:
    """Return the distinct rows of a batch with their counts, in the order of first appearance."""
    import pyarrow as pa

    positions = pa.array(range(batch.num_rows))
    table = pa.table({"problem": column_at(batch, problem), "answer": column_at(batch, answer), "position": positions})
    # Groups come in arbitrary order, so each keeps the position of its first row.
    groups = table.group_by(["problem", "answer"]).aggregate([([], "count_all"), ("position", "min")])
    rows: list[dict[str, Any]] = groups.sort_by("position_min").to_pylist()
    return rows


def column_at(batch: Any, steps: Steps) -> Any:
    import pyarrow.compute as pc

    values = batch.column(steps[0])
    for step in steps[1:]:
        values = pc.list_element(values, step) if isinstance(step, int) else pc.struct_field(values, step)
    return values


# Forms of rows


def form_of(row: Any, where: str) -> tuple[Steps, Steps]:
    """Return the steps to the problem and to the answer of a row."""
    for problem, answer in FORMS:
        if isinstance(follow_steps(row, problem), str) and follow_steps(row, answer) is not None:
            return problem, answer
    fields = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
    raise UserError(
        f"{where} has no problem and answer under a known name, such as problem and answer (docs/data.md lists all); "
        f"it has {short(fields)}"
    )


def follow_steps(row: Any, steps: Sequence[str | int]) -> Any:
    """Return the value at the end of the steps; None if a step leads nowhere."""
    for step in steps:
        row = values_inside(row).get(str(step))
    return row


def values_inside(value: Any) -> Mapping[str, Any]:
    """Return the values in a mapping by their names, and those in a list by their numbers."""
    if isinstance(value, list):
        return {str(number): item for number, item in enumerate(value)}
    return value if isinstance(value, Mapping) else {}
