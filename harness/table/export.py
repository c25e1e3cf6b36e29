"""Every answer count of a matrix in a Parquet file; docs/statistics.md names its columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base import files
from harness.table.frames import ROW, Frames, done_cells, setting_text

if TYPE_CHECKING:
    from pandas import DataFrame

# Columns of the file by those of the frames, with their types: the file names tasks as the leaderboard does.
NAMES = {
    "experiment": ("experiment", "string"),
    "method": ("method", "string"),
    "task": ("trained_on", "string"),
    "evaluated": ("task", "string"),
    "model": ("model", "string"),
    "setting": ("setting", "string"),
    "seed": ("seed", "int64"),
    "problem": ("problem", "string"),
    "right": ("right", "int32"),
    "samples": ("samples", "int32"),
    "right_distinct": ("right_distinct", "int32"),
    "solutions": ("solutions", "int32"),
}


def write_parquet(tables: Mapping[str, Frames], path: Path) -> None:
    """Write a row for each experiment, method, task, model, seed and problem that is done."""
    import pandas
    import pyarrow

    parts = [answer_rows(frames).assign(experiment=experiment) for experiment, frames in tables.items()]
    rows = pandas.concat(parts, ignore_index=True)[list(NAMES)]
    rows.columns = [column for column, _ in NAMES.values()]
    for column in ("right_distinct", "solutions"):
        rows[column] = rows[column].astype("Int32")  # whose missing values are null in the file
    schema = pyarrow.schema([(column, pyarrow.type_for_alias(kind)) for column, kind in NAMES.values()])
    with files.atomic(path) as file:
        rows.to_parquet(file, index=False, schema=schema)


def answer_rows(frames: Frames) -> DataFrame:
    """Return the answers with the keys of their cells, by rows of the leaderboard and then by seed."""
    cells = done_cells(frames.cells)
    order = cells.groupby(ROW, sort=False).ngroup()
    cells = cells.assign(order=order).sort_values(["order", "seed"], kind="stable")
    cells = cells.assign(setting=list(map(setting_text, cells["setting"])))
    answers = frames.answers.assign(problem=frames.answers["problem"].astype("object"))
    return cells.merge(answers, how="left", on=["cell", "evaluated", "moment"])
