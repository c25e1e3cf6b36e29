"""Every answer count of a matrix as one tidy table in a Parquet file; docs/statistics.md names its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.base import files
from harness.config import told
from harness.report.leaderboard import Entry


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
        ]
    )
    rows = [
        (
            *(experiment, entry.method, entry.trained_on, entry.task, entry.model, told(entry.setting)),
            *(seed, problem, int(right), result.right_JN.shape[1]),
        )
        for experiment, entries in tables.items()
        for entry in entries
        for seed, result in sorted(entry.results.items())
        for problem, right in zip(result.problems, result.right_JN.sum(axis=1), strict=True)
    ]
    table = pa.table([pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)], schema=schema)
    with files.atomic(path) as file:
        parquet.write_table(table, file)
