"""entrobench unpack: puts the finished cells of a pack into a matrix, which `run` then continues."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.base import files, identities
from harness.base.errors import UserError, shown
from harness.cells import checksums
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.commands.common import Commands, command, config_or_candidates, console, with_candidates, with_config
from harness.commands.pack import protocol_of_cells
from harness.config import Config
from harness.matrix import Cell, cells, claim
from harness.packs.archive import Pack, unpacked
from harness.packs.protocol import DIFFERENCES_LISTED
from harness.terminal.units import plural

EXAMPLES = (
    "entrobench unpack demo.zip demo",
    "entrobench unpack theirs.zip my.yaml train.steps=20 --plugin my_methods",
    "entrobench unpack demo-tune.zip demo --candidates",
)


def add(commands: Commands) -> None:
    text = "put the finished cells of a pack into a matrix, so that `run` continues it on another machine"
    parser = command(commands, "unpack", text, EXAMPLES)
    parser.add_argument("file", metavar="FILE", type=Path, help="a file that `entrobench pack` has written")
    with_candidates(with_config(parser))


def call(arguments: argparse.Namespace) -> int:
    config = config_or_candidates(arguments)
    with unpacked(arguments.file) as pack:
        counts = unpack_cells(pack, config, cells(config))
        ruleset = pack.protocol.definition["ruleset"]
    console.print(f"{arguments.file}: {counts}")
    if counts.of_others and ruleset != config.ruleset:
        rulesets = f"({shown(ruleset)}, not {shown(config.ruleset)})"
        console.print(f"note: the pack and the matrix differ in ruleset {rulesets}", style="yellow")
    console.print(
        "next, with the same CONFIG and values: `entrobench run` makes the cells that are missing; `entrobench sync` "
        "sends finished cells to MLflow, which `leaderboard` and `report` read"
    )
    return 0


@dataclass
class Unpacked:
    """The number of a pack's cells, by what became of them."""

    put: int = 0
    kept: int = 0  # that have a folder in the matrix, and are done there
    begun: int = 0  # that have a folder in the matrix, and are not done
    failed: int = 0  # where they were packed
    of_others: int = 0  # that the matrix does not have

    def __str__(self) -> str:
        parts = [f"{plural(self.put, 'cell')} put into the matrix"]
        if self.kept:
            parts.append(f"{self.kept} left out because they are done there")
        if self.begun:
            parts.append(
                f"{self.begun} left out because they have a folder there, though they are not done (to get them from "
                "the pack, remove these folders and unpack again)"
            )
        if self.failed:
            parts.append(f"{self.failed} left out because they failed")
        if self.of_others:
            parts.append(f"{self.of_others} left out because they are of another matrix or setting")
        return ", ".join(parts)


def unpack_cells(pack: Pack, config: Config, matrix: Sequence[Cell]) -> Unpacked:
    """Put each finished cell of a pack that the matrix has, and that has not begun there, into the matrix's folder."""
    ours = {cell.id: cell for cell in matrix}
    # By the hash of each identity: the stated id may be wrong.
    packed = {identities.key(CellSpec.read(folder).identity): folder for folder in pack.cells}
    shared = sorted(packed.keys() & ours.keys())
    if not shared:
        differences = protocol_of_cells(config, matrix).differences(pack.protocol)
        why = "cells are the same if method, task, model, seed, settings and the kind of device are"
        if differences:
            why = f"the protocols differ in {', '.join(differences[:DIFFERENCES_LISTED])}"
        raise UserError(f"no cell of {pack.path} (matrix {pack.matrix!r}) is one of the matrix {config.name!r}; {why}")
    done = [name for name in shared if State.read(packed[name]).state == "done"]
    for name in done:
        Made.read(packed[name])  # which no sum covers
        for damage, _ in checksums.changed_records(packed[name]):
            raise damage
    claim(config)
    counts = Unpacked(failed=len(shared) - len(done), of_others=len(packed) - len(shared))
    for name in done:
        if put(packed[name], ours[name]):
            counts.put += 1
        elif ours[name].progress().state == "done":
            counts.kept += 1
        else:
            counts.begun += 1
    return counts


def put(packed: Path, cell: Cell) -> bool:
    """Copy the records of a packed cell to its place; return False if that place is taken."""
    with files.temporary_path(cell.folder) as copy:
        shutil.copytree(packed, copy)
        cell.spec.write(copy)  # its matrix and its paths may be others than where it was packed
        try:
            os.rename(copy, cell.folder)  # whole or not at all, and never over the records of a cell
        except OSError:
            if not cell.folder.exists():
                raise
            files.remove_path(copy)
            return False
    return True
