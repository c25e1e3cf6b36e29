"""entrobench sync: feeds MLflow from the cells' own records, whatever happened to it."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.base.errors import without_password
from harness.commands.common import Commands, command, console, load, with_config
from harness.config import Config
from harness.matrix import Cell, cells
from harness.record.made import earlier


def add(commands: Commands) -> None:
    parser = with_config(command(commands, "sync", "feed MLflow from the cells' own records"))
    parser.add_argument(
        "--tensorboard", type=Path, metavar="FOLDER", help="write the metrics of all cells for TensorBoard, too"
    )
    parser.add_argument("--wandb", type=Path, metavar="FOLDER", help="and as offline runs of Weights & Biases")


def call(arguments: argparse.Namespace) -> int:
    from harness.report import publish

    config = load(arguments)
    matrix = cells(config)
    sync(config, matrix)
    publish.write(config, matrix)
    console.print(f"MLflow at {without_password(config.tracking_uri)} holds what {len(matrix)} cells have recorded")
    if arguments.tensorboard:
        from harness.record import tensorboard

        for cell in matrix:
            if (cell.folder / "metrics.jsonl").exists():
                tensorboard.write(cell.folder, arguments.tensorboard / config.name / cell.folder.name)
        console.print(f"for the curves: tensorboard --logdir {arguments.tensorboard}")
    if arguments.wandb:
        from harness.record import wandb

        for cell in matrix:
            if (cell.folder / "metrics.jsonl").exists():
                wandb.write(cell.folder, arguments.wandb)
        console.print(f"to upload them: wandb sync {arguments.wandb}/wandb/offline-run-*")
    return 0


def sync(config: Config, matrix: list[Cell]) -> None:
    from harness.record.sync import sync as feed

    for folder in (each for cell in matrix for each in (*earlier(cell.folder), cell.folder)):
        if (folder / "state.json").exists():
            feed(folder, config.tracking_uri)
