"""entrobench unpack: puts the finished cells of a pack into a matrix, which `run` then continues."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.base.errors import shown
from harness.base.terminal import console
from harness.commands.common import Commands, command, config_or_candidates, with_candidates, with_config
from harness.matrix import cells
from harness.packs.archive import unpacked
from harness.packs.exchange import unpack_cells

EXAMPLES = (
    "entrobench unpack demo.zip demo",
    "entrobench unpack theirs.zip my.yaml train.steps=20 --plugin my_methods",
    "entrobench unpack demo-tune.zip demo-tuned --candidates",
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
    trains = "tune" if arguments.candidates else "run"
    console.print(
        f"next, with the same CONFIG and values: `entrobench {trains}` makes the cells that are missing; `entrobench "
        "sync` sends finished cells to MLflow, which `leaderboard` and `report` read"
    )
    return 0
