"""Every answer count of a matrix as one tidy table in a Parquet file; docs/statistics.md names its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.base import files
from harness.config import told
from harness.table.leaderboard import Entry
from harness.table.read import Result


def of_problems(result: Result) -> Iterator[tuple[Any, ...]]:
    """Yield the columns from the problem on, for each problem of a seed."""
    number, samples = result.right_JN.shape
    missing = [None] * number
    distinct = missing if result.right_distinct_J is None else result.right_distinct_J.tolist()
    solutions = missing if result.solutions_J is None else result.solutions_J.tolist()
    yield from zip(result.problems, result.right_J.tolist(), [samples] * number, distinct, solutions, strict=True)


def write(tables: Mapping[str, Sequence[Entry]], path: Path) -> None:
    """Writes a row for each experiment, method, task, model, seed and problem that is done."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(
        [
            ("experiment", pa.string()),
            ("method", pa.string()),
            ("trained_on", pa.string()),
            ("task", pa.string()),
            ("model", pa.string()),
            ("setting", pa.string()),
            ("seed", pa.int64()),
            ("problem", pa.string()),
            ("right", pa.int32()),
            ("samples", pa.int32()),
            ("right_distinct", pa.int32()),
            ("solutions", pa.int32()),
        ]
    )
    rows = [
        (
            *(experiment, entry.method, entry.trained_on, entry.task, entry.model, told(entry.setting)),
            *(seed, *numbers),
        )
        for experiment, entries in tables.items()
        for entry in entries
        for seed, result in sorted(entry.results.items())
        for numbers in of_problems(result)
    ]
    table = pa.table([pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)], schema=schema)
    with files.atomic(path) as file:
        parquet.write_table(table, file)
