"""A running cell as its records describe it at one moment.

The live view asks several questions about each cell at each tick. All of them are answered from one snapshot: on a
network file system every further look at a small file costs a round trip.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.cells.provenance import Made
from harness.cells.state import Progress
from harness.matrix import Cell

RECENT = 10  # steps whose metrics are kept, for the sparklines
NOT_YET_RUNNING = ("planned", "stale", "failed")  # states of a cell until its process writes that it runs


@dataclass(frozen=True)
class Snapshot:
    """A cell with its progress at one moment."""

    cell: Cell
    progress: Progress

    @classmethod
    def take(cls, cell: Cell) -> Snapshot:
        return cls(cell, cell.progress(RECENT))

    @property
    def step(self) -> int:
        """The step that the cell has reached; before its process runs, the checkpoint from which it will resume."""
        if self.progress.state in NOT_YET_RUNNING:
            return max(self.progress.record.durable_step, 0)
        return self.progress.step

    @property
    def phase(self) -> str:
        """The current activity of the cell where its numbers do not show it."""
        if self.progress.state in NOT_YET_RUNNING:
            return "starting its process"
        if self.progress.reason is not None or self.progress.step > 0:
            return self.progress.reason or ""
        return "evaluating before training" if self.progress.record.device else "loading the model"

    def attempt(self) -> str | None:
        """Return the id of the attempt at the cell that its records are of, None before the first."""
        made = Made.read(self.cell.folder)
        return made.attempt if made else None
