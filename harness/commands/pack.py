"""entrobench pack: a matrix as one small file, which others can read and verify."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.base.errors import UserError
from harness.cells import checksums
from harness.cells.spec import id_in
from harness.cells.state import State
from harness.commands.common import (
    Commands,
    check_out,
    command,
    config_or_candidates,
    console,
    with_candidates,
    with_config,
)
from harness.config import Config
from harness.matrix import Cell, cells
from harness.packs.archive import SUFFIX, write_pack
from harness.packs.protocol import Protocol, protocol_of
from harness.terminal.units import plural

EXAMPLES = (
    "entrobench pack demo",
    "entrobench pack my.yaml train.steps=20 --plugin my_methods --out my.zip",
    "entrobench pack demo --candidates",
)


def add(commands: Commands) -> None:
    text = "write a matrix as one file: answers, verdicts, metrics, configurations and versions, no weights"
    parser = with_config(command(commands, "pack", text, EXAMPLES))
    with_candidates(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write it (default: NAME.zip in the current folder)"
    )


def call(arguments: argparse.Namespace) -> int:
    check_out(arguments.out)
    config = config_or_candidates(arguments)
    out = arguments.out or Path(f"{config.name}{SUFFIX}")
    packed, expected = pack_matrix(config, out)
    size = out.stat().st_size
    console.print(
        f"wrote {out}: {packed} of {plural(expected, 'cell')}, {size / 1000:,.0f} kB, {size / packed / 1000:,.0f} kB a "
        f"cell, protocol {protocol_of_cells(config, cells(config)).name}"
    )
    return 0


def pack_matrix(config: Config, out: Path) -> tuple[int, int]:
    """Write the cells of a matrix that have ended; return their number, and that of all cells."""
    from harness.table.board import Board

    matrix = cells(config)
    folders = [cell.folder for cell in matrix if has_ended(cell)]
    done = [folder for folder in folders if State.read(folder).state == "done"]
    if not done:
        raise UserError(f"no cell of the matrix {config.name} in {config.folder} is done, so there is nothing to pack")
    # Only of these, since a cell gets its checksums when it is done.
    for folder in done:
        for damage, _ in checksums.changed_records(folder):
            raise damage
    write_pack(out, config.name, Board.of_config(config, matrix).as_json(), folders, protocol_of_cells(config, matrix))
    return len(folders), len(matrix)


def has_ended(cell: Cell) -> bool:
    """Return whether a cell's folder holds its records, done or failed."""
    return State.read(cell.folder).ended and id_in(cell.folder) == cell.id


def protocol_of_cells(config: Config, matrix: Sequence[Cell]) -> Protocol:
    """Return the protocol of a matrix from its configuration."""
    specs = [cell.spec for cell in matrix]
    return protocol_of(specs[0].settings, specs)
