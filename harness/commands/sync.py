"""entrobench sync: rebuilds the MLflow runs from the cells' own records."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from harness.base.addresses import visible_address
from harness.base.deadline import finished_within, results_as_ready
from harness.base.errors import Damaged, UserError
from harness.cells.adopted import adopted_folders, is_adopted
from harness.cells.attempts import earlier_attempts
from harness.commands.common import Commands, command, config_of_arguments, console, with_config
from harness.config import Config
from harness.matrix import Cell, cells
from harness.terminal.units import plural

# Cells that are sent to a server at once; it has four processes by default. A file has one writer at a time.
AT_ONCE = 4
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

    config = config_of_arguments(arguments)
    matrix = cells(config)
    fed, damaged = sync_matrix(config, matrix)
    in_time(config, partial(publish, config, matrix), "the table")
    console.print(f"MLflow at {visible_address(config.tracking_uri)} holds the records of {plural(fed, 'cell')}")
    if arguments.tensorboard:
        from harness.tracking import tensorboard

        for cell in matrix:
            if (cell.folder / "metrics.jsonl").exists():
                tensorboard.write_tensorboard(cell.folder, arguments.tensorboard / config.name / cell.folder.name)
        console.print(f"for the curves: tensorboard --logdir {arguments.tensorboard}")
    if arguments.wandb:
        from harness.tracking import wandb

        for cell in matrix:
            if (cell.folder / "metrics.jsonl").exists():
                wandb.write_wandb_run(cell.folder, arguments.wandb)
        console.print(f"to upload them: wandb sync {arguments.wandb}/wandb/offline-run-*")
    return int(damaged > 0)


def sync_matrix(config: Config, matrix: list[Cell]) -> tuple[int, int]:
    """Feed MLflow with all cells that have records; return the numbers of fed cells and of damaged ones.

    Adopted cells of the matrix's folder are among them. Earlier attempts at a cell are fed too; they count only if they
    are damaged.
    """
    from harness.launch.progress import show_count

    planned = [cell.folder for cell in matrix]
    present = [*planned, *adopted_folders(config.folder)]
    folders = folders_with_records(present)
    fed, damaged = set[Path](), 0
    with show_count(console, "feeding MLflow with cells", len(folders)) as show_next:
        for folder, damage in fed_folders(config, folders):
            show_next(folder.name)
            if damage is None:
                fed.add(folder)
            else:
                damaged += 1
                remedy = "adopt" if is_adopted(folder) else "run"
                console.print(f"MLflow is not fed: {damage}; `entrobench {remedy}` repairs the cell", style="yellow")
    return len(fed.intersection(present)), damaged


def folders_with_records(cell_folders: Sequence[Path]) -> list[Path]:
    """Return the folders of those cells that have begun, each after those of its earlier attempts."""
    folders = []
    for cell_folder in cell_folders:
        for folder in (*earlier_attempts(cell_folder), cell_folder):
            if (folder / "state.json").exists() or (folder / "metrics.jsonl").exists():
                folders.append(folder)
    return folders


def fed_folders(config: Config, folders: Sequence[Path]) -> Iterator[tuple[Path, Damaged | None]]:
    """Feed MLflow with cells, and yield each folder with the damage for which it was not fed."""
    from harness.tracking.store import is_server, store
    from harness.tracking.sync import sync

    uri = config.tracking_uri

    def feed(folder: Path) -> Damaged | None:
        try:
            in_time(config, partial(sync, folder, uri), folder.name)
        except Damaged as damage:
            return damage
        return None

    def connect() -> None:
        with store(uri, write=True):  # loads MLflow here, not in several threads at the same time
            pass

    threads = 1
    if is_server(uri):
        in_time(config, connect, "the connection")
        threads = AT_ONCE
    yield from results_as_ready(feed, folders, threads)


def in_time(config: Config, work: Callable[[], object], what: str) -> None:
    """Do work with MLflow within tracking.patience_minutes; `what` names the work in the error."""
    minutes = config.tracking.patience_minutes
    if not finished_within(60 * minutes, work):
        raise UserError(
            f"the MLflow store at {visible_address(config.tracking_uri)} took longer than tracking.patience_minutes "
            f"({minutes:g}) for {what}; the same command continues from there"
        )
