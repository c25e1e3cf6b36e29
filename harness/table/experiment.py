"""An MLflow experiment: its runs, their matrices, and the outcomes of finished cells."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.base import identities
from harness.base.addresses import visible_address
from harness.base.errors import UserError, nearest
from harness.cells.evaluations import OUTCOME, OUTCOME_TAG
from harness.cells.spec import FILE as SPEC
from harness.cells.spec import CellSpec
from harness.table import board
from harness.table.board import Board
from harness.tracking.reader import Run, StoreReader

Outcome = dict[str, Any]


class Experiment:
    """The runs of an experiment, each requested from the store once."""

    def __init__(self, source: StoreReader, name: str, uri: str) -> None:
        known = source.experiments()
        if name not in known:
            hint = f"; {nearest(name, known)}" if known else ""
            raise UserError(
                f"the MLflow store at {visible_address(uri)} has no experiment {name!r}; `entrobench run` or "
                "`entrobench sync` makes it" + hint
            )
        self.source, self.name, self.uri = source, name, uri
        self.summaries: list[Run] = []
        self.runs: list[Run] = []  # of cells
        for run in source.runs(known[name]):
            if run.tags.get(board.KIND) == board.SUMMARY:
                self.summaries.append(run)
            elif run.tags.keys() >= board.OF_CELLS:
                self.runs.append(run)
        self.outcomes: dict[str, Outcome] = {}
        self.id = known[name]

    @property
    def done(self) -> dict[str, Run]:
        """The run of each cell that is done: its newest complete attempt."""
        # Runs have the oldest first, so that of several of one cell the newest is kept; `newest` relies on it, too.
        return {run.tags["cell"]: run for run in self.runs if run.tags.get("status") == "done"}

    @property
    def newest(self) -> dict[str, Run]:
        """The run of each cell that has begun: its newest complete attempt, or else the newest."""
        latest = {run.tags["cell"]: run for run in self.runs}
        return latest | self.done

    @cached_property
    def copies(self) -> dict[str, Outcome]:
        """The outcomes in the summaries, by digest, without copies whose digest is wrong."""
        copies: dict[str, Outcome] = {}
        for text in self.source.texts(self.summaries, board.OUTCOMES):
            copies |= parsed_object(text)
        return {digest: copy for digest, copy in copies.items() if identities.hash_of(copy) == digest}

    def boards(self) -> list[Board]:
        """Return the matrices of the experiment, that of the newest run first."""
        texts = self.source.texts(self.summaries, board.FILE)
        boards = [Board.of_json(text) for text in texts if text is not None]
        if not boards:
            raise UserError(
                f"the experiment {self.name!r} at {visible_address(self.uri)} holds no table; `entrobench run` writes "
                "it at its end, and `entrobench sync` at once"
            )
        ages = {run.tags["cell"]: number for number, run in enumerate(self.runs)}

        def newest_run(matrix: Board) -> int:
            return max(ages.get(cell.cell, -1) for cell in matrix.expected)

        return sorted(boards, key=newest_run, reverse=True)

    def specs(self, runs: Sequence[Run]) -> list[CellSpec | None]:
        specs: list[CellSpec | None] = []
        for run, text in zip(runs, self.source.texts(runs, SPEC), strict=True):
            if text is None:
                specs.append(None)
            else:
                specs.append(CellSpec.parse(text, Path(f"{SPEC} of the run {run.name!r} of {self.name!r}")))
        return specs

    def others(self, of: Board) -> list[Run]:
        """Return the runs with the settings of a matrix that belong to none of its cells."""
        cells = {cell.cell for cell in of.expected}
        settings = board.settings_of(of.expected[0].params)
        others = []
        for run in self.runs:
            if run.tags["cell"] not in cells and board.settings_of(run.params) == settings:
                others.append(run)
        return others

    def outcomes_of(self, cells: Collection[str]) -> dict[str, Outcome]:
        """Return the outcomes of those among these cells that are done.

        Summaries have copies of many outcomes in one file, since a server is slow with many files.
        """
        done = self.done
        missing = []
        for cell in cells:
            if cell not in done or cell in self.outcomes:
                continue
            run = done[cell]
            copy = self.copies.get(run.tags.get(OUTCOME_TAG, ""))
            if copy is None:
                missing.append(run)
            else:
                self.outcomes[cell] = copy
        for run, text in zip(missing, self.source.texts(missing, OUTCOME), strict=True):
            if text is None:
                raise UserError(f"the MLflow run of cell {run.tags['cell']} has no {OUTCOME} among its artifacts")
            outcome = parsed_object(text)
            # A file with another digest than the run's tag is not the outcome of this run.
            if OUTCOME_TAG not in run.tags or identities.hash_of(outcome) == run.tags[OUTCOME_TAG]:
                self.outcomes[run.tags["cell"]] = outcome
        return {cell: self.outcomes[cell] for cell in cells if cell in self.outcomes}


def parsed_object(text: bytes | None) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one if the file is missing or damaged."""
    try:
        value = json.loads(text or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
