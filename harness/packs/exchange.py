"""A matrix as a pack, and the cells of a pack in a matrix."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.base import files, identities
from harness.base.errors import UserError
from harness.base.units import plural
from harness.cells import checksums
from harness.cells.provenance import Made, write_mark
from harness.cells.spec import CellSpec, changed_parts, id_in, training_key
from harness.cells.state import State
from harness.config import Config
from harness.matrix import Cell, cells, claim
from harness.packs.archive import Pack, write_pack
from harness.packs.protocol import Protocol, listed, protocol_of
from harness.table.board import Board
from harness.table.verified import REPORTED, marks_of_pack


def pack_matrix(config: Config, out: Path, *, slim_form: bool = False) -> tuple[int, int]:
    """Write the cells of a matrix that have ended; return their number, and that of all cells."""
    matrix = cells(config)
    # Done or failed, in folders that are theirs.
    folders = [cell.folder for cell in matrix if State.read(cell.folder).ended and id_in(cell.folder) == cell.id]
    done = [folder for folder in folders if State.read(folder).state == "done"]
    if not done:
        raise UserError(f"no cell of the matrix {config.name} in {config.folder} is done, so there is nothing to pack")
    # Only of these, since a cell gets its checksums when it is done.
    for folder in done:
        for damage, _ in checksums.changed_records(folder):
            raise damage
    summary, protocol = Board.of_config(config, matrix).as_json(), protocol_of_cells(matrix)
    write_pack(out, config.name, summary, folders, protocol, slim_form=slim_form)
    return len(folders), len(matrix)


def protocol_of_cells(matrix: Sequence[Cell]) -> Protocol:
    specs = [cell.spec for cell in matrix]
    return protocol_of(specs[0].settings, specs)


@dataclass
class Unpacked:
    """The number of a pack's cells, by what became of them."""

    put: int = 0
    kept: int = 0  # that have a folder in the matrix, and are done there
    begun: int = 0  # that have a folder in the matrix, and are not done
    failed: int = 0  # where they were packed
    of_others: int = 0  # that the matrix does not have

    def __str__(self) -> str:
        reasons = {
            "because they are done there": self.kept,
            "because they have a folder there, though they are not done (to get them from the pack, remove these "
            "folders and unpack again)": self.begun,
            "because they failed": self.failed,
            "because they are of another matrix or setting": self.of_others,
        }
        left_out = [f"{number} left out {why}" for why, number in reasons.items() if number]
        return ", ".join([f"{plural(self.put, 'cell')} put into the matrix", *left_out])


def unpack_cells(pack: Pack, config: Config, matrix: Sequence[Cell]) -> Unpacked:
    """Put each finished cell of a pack that the matrix has, and that has not begun there, into the matrix's folder."""
    ours = {cell.id: cell for cell in matrix}
    # By the hash of each identity: the stated id may be wrong.
    specs = {folder: CellSpec.read(folder) for folder in pack.cells}
    packed = {identities.key(spec.identity): folder for folder, spec in specs.items()}
    shared = sorted(packed.keys() & ours.keys())
    if not shared:
        why = "cells are the same if method, task, model, seed, settings and the kind of device are"
        if differences := protocol_of_cells(matrix).differences(pack.protocol):
            why = f"the protocols differ in {listed(differences)}"
        if edited := edited_since(specs.values(), matrix):
            why = (
                f"its cells are of another version of {listed(edited)}, which this one cannot continue; "
                "`leaderboard --pack`, `report --pack` and `verify` read them"
            )
        raise UserError(f"no cell of {pack.path} (matrix {pack.matrix!r}) is one of the matrix {config.name!r}; {why}")
    done = [name for name in shared if State.read(packed[name]).state == "done"]
    for name in done:
        Made.read(packed[name])  # which no sum covers
        for damage, _ in checksums.changed_records(packed[name]):
            raise damage
    claim(config)
    counts = Unpacked(failed=len(shared) - len(done), of_others=len(packed) - len(shared))
    marks = marks_of_pack(pack.digest)
    for name in done:
        if put(packed[name], ours[name], marks.get(CellSpec.read(packed[name]).id, REPORTED)):
            counts.put += 1
        elif ours[name].progress().state == "done":
            counts.kept += 1
        else:
            counts.begun += 1
    return counts


def edited_since(packed: Iterable[CellSpec], matrix: Sequence[Cell]) -> list[str]:
    """Return the parts in which packed cells are other versions of a matrix's; none if they are other cells."""
    identities_by_training = {training_key(cell.identity): cell.identity for cell in matrix}
    edited: set[str] = set()
    for spec in packed:
        if present := identities_by_training.get(training_key(spec.identity)):
            edited.update(changed_parts(spec.identity, present))
    return sorted(edited)


def put(packed: Path, cell: Cell, mark: str) -> bool:
    """Copy the records of a packed cell to its place with the mark of its pack; return False if that place is taken."""
    with files.temporary_path(cell.folder) as copy:
        shutil.copytree(packed, copy)
        write_mark(copy, mark)
        cell.spec.write(copy)  # its matrix and its paths may be others than where it was packed
        try:
            os.rename(copy, cell.folder)  # whole or not at all, and never over the records of a cell
        except OSError:
            if not cell.folder.exists():
                raise
            files.remove_path(copy)
            return False
    return True
