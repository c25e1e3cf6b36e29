"""entrobench sync: rebuilds the MLflow runs from the cells' own records."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from harness.base.addresses import visible_address
from harness.base.deadline import finished_within
from harness.base.errors import Damaged, UserError
from harness.cells.attempts import earlier_attempts
from harness.commands.common import Commands, command, console, load, with_config
from harness.config import Config
from harness.matrix import Cell, cells

EXAMPLES = (
    "entrobench sync demo",
    "entrobench sync my.yaml train.steps=20 --plugin my_methods --tensorboard curves --wandb runs",
)


def add(commands: Commands) -> None:
    parser = with_config(command(commands, "sync", "fill MLflow from the cells' own records", EXAMPLES))
    parser.add_argument(
        "--tensorboard", type=Path, metavar="FOLDER", help="also write the metrics of all cells for TensorBoard"
    )
    parser.add_argument("--wandb", type=Path, metavar="FOLDER", help="also write offline runs of Weights & Biases")


def call(arguments: argparse.Namespace) -> int:
    from harness.table.publish import publish

    config = load(arguments)
    matrix = cells(config)
    fed, damaged = sync(config, matrix)
    publish(config, matrix)
    held = f"what {'1 cell has' if fed == 1 else f'{fed} cells have'} recorded"
    console.print(f"MLflow at {visible_address(config.tracking_uri)} holds {held}")
    if arguments.tensorboard:
        from harness.tracking import tensorboard

        for cell in matrix:
            if (cell.folder / "metrics.jsonl").exists():
                tensorboard.write(cell.folder, arguments.tensorboard / config.name / cell.folder.name)
        console.print(f"for the curves: tensorboard --logdir {arguments.tensorboard}")
    if arguments.wandb:
        from harness.tracking import wandb

        for cell in matrix:
            if (cell.folder / "metrics.jsonl").exists():
                wandb.write(cell.folder, arguments.wandb)
        console.print(f"to upload them: wandb sync {arguments.wandb}/wandb/offline-run-*")
    return 1 if damaged else 0


def sync(config: Config, matrix: list[Cell]) -> tuple[int, int]:
    """Feed MLflow with all cells that have records, and return how many it holds and how many are damaged.

    Earlier attempts at a cell are fed as well, and count where they are damaged.
    """
    from harness.tracking.sync import sync as feed

    fed, damaged, uri = set[Path](), 0, config.tracking_uri
    limit = 60 * config.tracking.patience_minutes
    present = {cell.folder for cell in matrix}
    for folder in (each for cell in matrix for each in (*earlier_attempts(cell.folder), cell.folder)):
        if not ((folder / "state.json").exists() or (folder / "metrics.jsonl").exists()):
            continue
        try:
            if not finished_within(limit, partial(feed, folder, uri)):
                raise UserError(
                    f"the MLflow store at {visible_address(uri)} took longer than tracking.patience_minutes "
                    f"({config.tracking.patience_minutes:g}) for {folder.name}; the same command goes on from there"
                )
            fed.add(folder)
        except Damaged as damage:
            damaged += 1
            console.print(f"MLflow is not fed: {damage}; `entrobench run` repairs the cell", style="yellow")
    return len(fed & present), damaged
