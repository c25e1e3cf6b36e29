"""The leaderboard as a frame for scripts and notebooks, which prints itself as the table for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from pandas import DataFrame

from harness.table.leaderboard import LeaderboardRow
from harness.table.publish import table_html
from harness.table.render import records_frame, render_rows
from harness.terminal.layout import visible


class LeaderboardFrame(DataFrame):
    """Rows of the leaderboard with the columns of its csv; a selection of rows or columns is a plain frame."""

    # pandas takes any other attribute for a column.
    _internal_names: ClassVar[list[str]] = [*DataFrame._internal_names, "rows"]
    _internal_names_set: ClassVar[set[str]] = {*_internal_names}

    @property
    def _constructor(self) -> Callable[..., DataFrame]:
        return DataFrame

    def __repr__(self) -> str:
        return visible(render_rows(self.rows, "table"))

    def _repr_html_(self) -> str:
        return table_html(self.rows)


def leaderboard_frame(rows: Sequence[LeaderboardRow]) -> LeaderboardFrame:
    """Return the rows as a frame; a missing value is NaN."""
    frame = records_frame(rows).infer_objects()
    columns = {}
    for name, column in frame.items():
        columns[name] = column.where(column.notna(), float("nan")).tolist()  # as lists, so that types are inferred
    table = LeaderboardFrame(columns)
    table.rows = list(rows)
    return table
