"""The rows of a data set of one's own: read, checked, and refused with the place of the row that is wrong."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from decimal import Decimal
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base import files, identities
from harness.base.errors import UserError, nearest, one_of, shown
from harness.base.hub import hub_errors, hub_reason
from harness.base.terminal import console
from tasks.data import sources
from tasks.data.clean import fold

if TYPE_CHECKING:
    import pyarrow

Row = tuple[str, Any]  # its place, for messages, and its values by column


def distinct(rows: Iterable[Row], problem: str, answer: str) -> tuple[dict[str, str], int]:
    """Return the answers by problem, and the number of rows that repeat a problem.

    Problems that differ in white space alone are one; refuse them if their answers differ.
    """
    by_folded: dict[str, tuple[str, str, str]] = {}  # the first place of a problem, its text, and its answer
    copies = 0
    for place, row in rows:
        text, gold = text_in(row, place, "problem", problem), text_in(row, place, "answer", answer)
        copies += fold(text) in by_folded
        first, other_text, other_gold = by_folded.setdefault(fold(text), (place, text, gold))
        if gold != other_gold:
            raise UserError(
                f"{place} has the problem of {first} with another answer, {shown(gold)} instead of {shown(other_gold)}"
            )
        # The smallest spelling, since the order of the rows must not matter.
        by_folded[fold(text)] = (first, min(text, other_text), gold)
    return {text: gold for _, text, gold in by_folded.values()}, copies


def text_in(row: Any, place: str, option: str, column: str) -> str:
    """Return the text in a column of a row; a number is written out, and a list may have one item."""
    value = column_value(row, place, option, column)
    if isinstance(value, list):
        if len(value) > 1:
            raise UserError(f"{place} has {len(value)} values in {column!r}; a row has one {option}")
        value = value[0] if value else None
    if value is None or value != value or not str(value).strip():  # NaN is a missing number
        raise UserError(f"{place} has no {option}: {column!r} is empty")
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal) or value in (inf, -inf):
        raise UserError(f"{place} has {shown(value)} in {column!r}; allowed: text or a number")
    # Without an exponent, which the verifier does not read.
    number = Decimal(repr(float(value))) if isinstance(value, float) else value
    text = f"{number:f}" if isinstance(number, Decimal) else str(value).strip()
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place} has a broken character in {column!r}: half a surrogate pair") from None
    return text


def column_value(row: Any, place: str, option: str, column: str) -> Any:
    """Return the value in a column of a row; `prompt.0.content` is inside the column `prompt`."""
    if not isinstance(row, Mapping):
        raise UserError(f"{place} is {shown(row)}; it must be an object with a problem and an answer")
    if column in row:
        return row[column]
    value, above, columns = row, "", list[str]()  # the columns down to the value
    for step in column.split("."):
        if value is None or value == []:
            return None
        inner = sources.values_inside(value)
        columns += [f"{above}{name}" for name in inner]
        if step not in inner:
            raise UserError(f"problems.{option} is {column!r}, which {place} does not have; {nearest(column, columns)}")
        value, above = inner[step], f"{above}{step}."
    return value


# Files


def last_change(file: Path) -> tuple[int, int]:
    """Return the time of a file's last change and its size; refuse one that cannot be read."""
    try:
        with open(file, "rb") as opened:
            status = os.fstat(opened.fileno())
    except OSError as error:
        raise UserError(f"problems.file is {str(file)!r}, which cannot be read: {error.strerror}") from error
    return status.st_mtime_ns, status.st_size


def file_rows(file: Path, name: str) -> Iterator[Row]:
    """Yield the rows of a file with their places; `name`: of the data set, in messages."""
    one_of("the end of problems.file", file.suffix.lower(), READERS)
    number = 0
    for number, row in READERS[file.suffix.lower()](file):
        yield f"row {number} of {name}", row
    if not number:
        raise UserError(f"{name} has no rows")


def json_rows(file: Path) -> Iterator[tuple[int, Any]]:
    utf8_text(file)
    return enumerate(sources.json_objects(file), start=1)


def csv_rows(file: Path) -> Iterator[tuple[int, Any]]:
    # For the whole process, which it can only make less strict: by default a field may have 131,072 characters.
    csv.field_size_limit(1 << 30)
    reader = csv.DictReader(io.StringIO(utf8_text(file), newline=""), strict=True)
    try:
        columns = list(filter(None, reader.fieldnames or ()))  # those without a name are no one's
        for column in columns:
            if columns.count(column) > 1:
                raise UserError(f"the header of {file} names {shown(column)} twice")
        for number, row in enumerate(reader, start=1):
            if None in row:
                raise UserError(f"line {reader.line_num} of {file} has more fields than the header")
            yield number, row
    except csv.Error as error:
        raise UserError(f"line {reader.reader.line_num} of {file} is not valid CSV: {error}") from error


def parquet_rows(file: Path) -> Iterator[tuple[int, Any]]:
    batches = sources.parquet_batches(file)
    return enumerate(itertools.chain.from_iterable(map(plain_rows, batches)), start=1)


def plain_rows(batch: pyarrow.RecordBatch | pyarrow.Table) -> list[dict[str, Any]]:
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        # Python cannot hold each of them: a date after the year 9999, an unknown time zone, a broken character.
        with suppress(ArithmeticError, LookupError, ValueError):
            columns[name] = values_of(column)
    return [{name: values[row] for name, values in columns.items()} for row in range(batch.num_rows)]


def values_of(column: pyarrow.Array | pyarrow.ChunkedArray) -> list[Any]:
    """Return the values of a column, of which a short float is the number that was written: 99.95 for 99.9499969."""
    import numpy
    import pyarrow as pa

    if pa.types.is_float16(column.type):  # Arrow writes it with more digits than it has
        return [None if value is None else float(str(numpy.float16(value))) for value in column.to_pylist()]
    as_text = with_float32_as(pa.string(), column.type)
    as_float = with_float32_as(pa.float64(), column.type)
    values: list[Any] = column.cast(as_text).cast(as_float).to_pylist()
    return values


def with_float32_as(other: pyarrow.DataType, kind: pyarrow.DataType) -> pyarrow.DataType:
    """Return a type of Arrow with another one in place of float32, in structs and lists too."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_float32_as(other, field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(with_float32_as(other, kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(with_float32_as(other, kind.value_type)))
    return other if pa.types.is_float32(kind) else kind


READERS: dict[str, Callable[[Path], Iterator[tuple[int, Any]]]] = {
    ".jsonl": json_rows,
    ".json": json_rows,
    ".csv": csv_rows,
    ".parquet": parquet_rows,
}


def utf8_text(file: Path) -> str:
    """Return the text of a file; refuse other encodings."""
    content = file.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{file} is not UTF-8 (byte 0x{content[error.start]:02x} in line {line}); save it as UTF-8"
        ) from None


# The Hugging Face Hub


HUB_BATCH = 1_000  # rows in memory at a time, which may hold pictures


@dataclass(frozen=True)
class HubColumns:
    """The columns of a data set on the Hub, kept in a file of the cache."""

    hub: str  # owner/name or owner/name@revision
    subset: str | None
    part: str
    problem: str
    answer: str

    @property
    def file(self) -> Path:
        return files.default_cache() / "data" / f"hub-{identities.key(asdict(self))}.jsonl"

    def download(self) -> None:
        console.print(f"downloading {self.hub} from the Hugging Face Hub")
        columns = {"problem": self.problem, "answer": self.answer}
        needed = {*columns.values(), *(column.partition(".")[0] for column in columns.values())}
        lines = []
        for place, row in self.rows():
            for option, column in columns.items():
                column_value(row, place, option, column)  # refuses a column that is not there
            lines.append(json.dumps({name: row[name] for name in row if name in needed}, default=json_text))
        files.write_text(self.file, "".join(f"{line}\n" for line in lines))

    def rows(self) -> Iterator[Row]:
        import datasets

        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs errors that it also raises
        name, _, revision = self.hub.partition("@")
        expected = (*hub_errors(), datasets.exceptions.DatasetsError, RuntimeError)  # the last for one that is a script
        try:
            rows = datasets.load_dataset(name, self.subset, split=self.part, revision=revision or None, streaming=True)
            batches = rows.with_format("arrow").iter(HUB_BATCH)
            for number, row in enumerate(itertools.chain.from_iterable(map(plain_rows, batches)), start=1):
                yield f"row {number} of {self.hub}", row
        except expected as error:
            reason = hub_reason(error)
            raise UserError(f"could not download {self.hub} from the Hugging Face Hub ({reason})") from error


def json_text(value: Any) -> str:
    """Return a value that JSON does not know as text, a number without an exponent."""
    return f"{value:f}" if isinstance(value, Decimal) else str(value)
