"""entrobench pack: a matrix as one small file, which others can read and verify."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.base.terminal import console
from harness.base.units import plural
from harness.commands.common import Commands, check_out, command, config_or_candidates, with_candidates, with_config
from harness.matrix import cells
from harness.packs.archive import SUFFIX
from harness.packs.exchange import pack_matrix, protocol_of_cells

EXAMPLES = (
    "entrobench pack demo",
    "entrobench pack my.yaml train.steps=20 --plugin my_methods --out my.zip",
    "entrobench pack demo-tuned --candidates",
    "entrobench pack demo --slim --out demo-slim.zip",
)


def add(commands: Commands) -> None:
    text = "write a matrix as one file: answers, verdicts, metrics, configurations and versions, no weights"
    parser = with_config(command(commands, "pack", text, EXAMPLES))
    with_candidates(parser)
    parser.add_argument("--slim", action="store_true", help="leave the answers out, but for their counts and digests")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write it (default: NAME.zip in the current folder)"
    )


def call(arguments: argparse.Namespace) -> int:
    check_out(arguments.out)
    config = config_or_candidates(arguments)
    out = arguments.out or Path(f"{config.name}{SUFFIX}")
    packed, expected = pack_matrix(config, out, slim_form=arguments.slim)
    size = out.stat().st_size
    console.print(
        f"wrote {out}: {packed} of {plural(expected, 'cell')}, {size / 1000:,.0f} kB, {size / packed / 1000:,.0f} kB a "
        f"cell, protocol {protocol_of_cells(cells(config)).name}"
    )
    return 0
