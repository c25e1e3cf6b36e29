"""Packs as a store of runs: a table reads them as it reads MLflow."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from harness.base.errors import Damaged, UserError
from harness.cells.evaluations import OUTCOME, cell_outcome
from harness.cells.log import MetricsLog
from harness.cells.provenance import CHECKED_TAG, Made
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.packs.archive import SUMMARY, Pack, unpacked
from harness.packs.protocol import check_same_protocol
from harness.table import board
from harness.table.board import NO_CELL, Board, Expected, Experiment
from harness.table.verified import REPORTED, marks_of_pack
from harness.tracking.reader import Curves, Point, Run
from harness.tracking.sync import metric_name, params_of, status_tags

SUMMARY_RUN = "summary"
MOST_CELLS = 10**5  # times seeds: a pack of ours has up to 657


class PackReader:
    """Reads the cells of one pack, or of several with the same protocol, as a StoreReader reads runs."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        self.packs = list(packs)
        first, *others = self.packs
        for other in others:
            check_same_protocol((first.path.name, first.protocol), (other.path.name, other.protocol))

    @cached_property
    def board(self) -> Board:
        """The matrix of the first pack, with the cells that the others add."""
        first, *others = map(with_all_seeds, self.packs)
        for other in others:
            first = dataclasses.replace(first, expected=[*first.expected, *added_cells(first, other)])
        return first

    @cached_property
    def folders(self) -> dict[str, Path]:
        """The folder of each cell, by its hash; of a cell in several packs, that of the first in which it is done."""
        packed = [folder for pack in self.packs for folder in pack.cells]
        packed.sort(key=lambda folder: State.read(folder).state != "done")  # which leaves the order of the others
        folders: dict[str, Path] = {}
        for folder in packed:
            folders.setdefault(CellSpec.read(folder).id, folder)
        return folders

    def experiments(self) -> dict[str, str]:
        return {self.board.experiment: self.board.experiment}

    def runs(self, experiment: str) -> list[Run]:
        # By folder, since a cell may be in several packs, and its mark is that of the pack that it is read from.
        marks: dict[Path, str] = {}
        for pack in self.packs:
            of_pack = marks_of_pack(pack.digest)
            for folder in pack.cells:
                marks[folder] = of_pack.get(CellSpec.read(folder).id, REPORTED)
        # The oldest first, as every StoreReader lists them.
        folders = sorted(self.folders.items(), key=lambda item: (started_at(item[1]), item[0]))
        runs = [run_of_packed_cell(folder, marks[folder]) for _, folder in folders]
        tags = {board.KIND: board.SUMMARY, board.KEY: self.board.key}
        return [*runs, Run(SUMMARY_RUN, "leaderboard", tags, {}, "", {})]

    def texts(self, runs: Sequence[Run], path: str) -> list[bytes | None]:
        return [self.text(run, path) for run in runs]

    def text(self, run: Run, path: str) -> bytes | None:
        if run.id == SUMMARY_RUN:
            # In a pack and in MLflow the file has the same name.
            return self.board.as_json().encode() if path == SUMMARY else None
        folder = self.folders[run.id]
        if path == OUTCOME:  # which no pack holds
            spec, lines = CellSpec.read(folder), MetricsLog(folder).read()
            return json.dumps(cell_outcome(folder, spec, lines)).encode()
        return (folder / path).read_bytes() if (folder / path).is_file() else None

    def listed(self, run: Run, folder: str) -> list[str]:
        paths = (self.folders[run.id] / folder).glob("*")
        return sorted(f"{folder}/{path.name}" for path in paths)

    def curves(self, runs: Sequence[Run], wanted: Callable[[str], object]) -> list[Curves]:
        return [self.curves_of_run(run, wanted) for run in runs]

    def curves_of_run(self, run: Run, wanted: Callable[[str], object]) -> Curves:
        curves: Curves = {}
        for line in MetricsLog(self.folders[run.id]).read():
            for key, value in line["metrics"].items():
                name = metric_name(key)
                if wanted(name):
                    # MLflow keeps milliseconds.
                    point = Point(line["step"], int(line["time"] * 1000) / 1000, value)
                    curves.setdefault(name, []).append(point)
        return dict(sorted(curves.items()))


def with_all_seeds(pack: Pack) -> Board:
    """Return a board with a cell for each seed of the protocol, so that a table counts the seeds that a pack lacks."""
    board, seeds = pack.board, pack.protocol.definition["seeds"]
    if len(board.expected) * len(seeds) > MOST_CELLS:
        raise Damaged(pack.path, f"{len(board.expected):,} cells with {len(seeds):,} seeds are more than a table has")
    present = {cell.place for cell in board.expected}
    missing: dict[tuple[str, ...], Expected] = {}
    for cell in board.expected:
        for seed in seeds:
            other = dataclasses.replace(cell, seed=seed, cell=NO_CELL)
            if other.place not in present:
                missing[other.place] = other
    return dataclasses.replace(board, expected=[*board.expected, *missing.values()])


def added_cells(ours: Board, theirs: Board) -> list[Expected]:
    """Return the cells that another pack adds to a table.

    A method that both have with different options gets the name of the other matrix behind its own, for all seeds; with
    a number, if a pack before has given that name.
    """
    # The same cell in both packs counts once; another cell at the same place differs by its options.
    present = {cell.cell for cell in ours.expected} - {NO_CELL}
    places = {cell.place for cell in ours.expected}
    taken = {cell.method for cell in ours.expected}
    new = [cell for cell in theirs.expected if cell.cell not in present]
    names = {cell.method: cell.method for cell in new}
    for method in {cell.method for cell in new if cell.place in places and cell.cell != NO_CELL}:
        numbered = (f"{method} ({theirs.experiment}, {number})" for number in itertools.count(2))
        candidates = itertools.chain([f"{method} ({theirs.experiment})"], numbered)
        names[method] = next(name for name in candidates if name not in taken)
    renamed = [dataclasses.replace(cell, method=names[cell.method]) for cell in new]
    return [cell for cell in renamed if cell.place not in places]  # without lacking seeds that ours has


def started_at(folder: Path) -> float:
    made = Made.read(folder)
    return made.started if made else 0.0


def run_of_packed_cell(folder: Path, mark: str) -> Run:
    """Return a cell with the tags and parameters that MLflow has of it; `mark`: how far its pack was verified."""
    spec, state, made = CellSpec.read(folder), State.read(folder), Made.read(folder)
    tags = {"cell": spec.id, "matrix": spec.matrix, "attempt": "", CHECKED_TAG: mark}
    tags |= spec.key.tags() | status_tags(spec, state)
    if made is not None:
        tags |= made.tags()
    return Run(spec.id, spec.key.run_name, tags, params_of(spec), "", {})


@contextmanager
def opened_packs(paths: Sequence[Path]) -> Iterator[Experiment]:
    """Open packs, check them, and yield their cells as one experiment."""
    names = ", ".join(map(str, paths))
    with ExitStack() as stack:
        packs = [stack.enter_context(unpacked(path)) for path in paths]
        reader = PackReader(packs)
        try:
            yield Experiment(reader, reader.board.experiment, names)
        except UserError:
            raise
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, ArithmeticError) as error:
            # As in `audit_cell`: each value of a stranger's records may be missing or of another type.
            why = f"its records are not those of a cell ({type(error).__name__}: {error})"
            raise UserError(f"{names} cannot be read: {why}") from error
