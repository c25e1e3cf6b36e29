"""entrobench sync: feeds MLflow from the cells' own records, whatever happened to it."""

from __future__ import annotations

import argparse

from harness.commands.common import Commands, command, console, load, with_config
from harness.config import Config
from harness.matrix import Cell, cells
from harness.record.made import earlier


def add(commands: Commands) -> None:
    with_config(command(commands, "sync", "feed MLflow from the cells' own records"))


def call(arguments: argparse.Namespace) -> int:
    config = load(arguments)
    matrix = cells(config)
    sync(config, matrix)
    console.print(f"MLflow at {config.tracking_uri} holds what {len(matrix)} cells have recorded")
    return 0


def sync(config: Config, matrix: list[Cell]) -> None:
    from harness.record.sync import sync as feed

    for folder in (each for cell in matrix for each in (*earlier(cell.folder), cell.folder)):
        if (folder / "state.json").exists():
            feed(folder, config.tracking_uri)
