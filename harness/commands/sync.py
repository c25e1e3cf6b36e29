"""entrobench sync: rebuilds the MLflow runs from the cells' own records."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote

from harness import runs
from harness.base import files
from harness.base.addresses import visible_address
from harness.base.terminal import console
from harness.base.units import plural
from harness.cells.log import FILE as METRICS
from harness.cells.spec import adopted_folders
from harness.commands.common import Commands, command, config_of_arguments, with_config
from harness.matrix import cells
from harness.tracking import export

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

    for option, folder in (("--tensorboard", arguments.tensorboard), ("--wandb", arguments.wandb)):
        if folder:
            files.check_folder(folder, f"{option} {folder}", make=True)
            export.check_installed(option.removeprefix("--"))
    config = config_of_arguments(arguments)
    matrix = cells(config)
    fed, damaged = runs.sync_matrix(config, matrix)
    publish(config, matrix)
    console.print(f"MLflow at {visible_address(config.tracking_uri)} holds the records of {plural(fed, 'cell')}")
    folders = [*(cell.folder for cell in matrix), *adopted_folders(config.folder)]
    logged = [folder for folder in folders if (folder / METRICS).exists()]
    if arguments.tensorboard:
        for folder in logged:
            export.write_tensorboard(folder, arguments.tensorboard / config.name / folder.name)
        console.print(f"for the curves: tensorboard --logdir {quote(str(arguments.tensorboard))}")
    if arguments.wandb:
        for folder in logged:
            export.write_wandb_run(folder, arguments.wandb)
        console.print(f"to upload them: wandb sync {quote(str(arguments.wandb))}/wandb/offline-run-*")
    return int(damaged > 0)
