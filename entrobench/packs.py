"""Packs as an object: the table and the page of matrices that others sent as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame


class Packs:
    """One file of `entrobench pack`, or several with the same protocol, whose rows form one table.

        theirs = entrobench.Packs("demo.zip", "theirs.zip")
        print(theirs.leaderboard())

    Raises UserError if a file was cut off, edited or made under another protocol.
    """

    def __init__(self, *files: str | Path) -> None:
        if not files:
            raise UserError("Packs() names no file; write for example Packs('demo.zip')")
        self.files = [Path(file) for file in files]

    def __repr__(self) -> str:
        return f"<packs {', '.join(map(str, self.files))}>"

    def leaderboard(self) -> DataFrame:
        """Return the table, with the columns of Matrix.leaderboard; `checked` says how far a row was verified."""
        from harness.packs.reader import opened_packs
        from harness.table.formats import leaderboard_frame
        from harness.table.select import parts_of_boards

        with opened_packs(self.files) as experiment:
            [part] = parts_of_boards(experiment, experiment.boards(), where={})
            return leaderboard_frame(part.rows())

    def report(self, out: str | Path | None = None) -> Path:
        """Write one self-contained HTML page with the table and the curves, and return its path."""
        from harness.page import page

        return page.report_of_packs(self.files, None if out is None else Path(out))
