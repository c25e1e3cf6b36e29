"""entrobench sync: feeds MLflow from the cells' own records, whatever happened to it."""

from __future__ import annotations

import argparse

from harness.commands.common import Commands, command, console, load, with_config
from harness.config import Config
from harness.matrix import Cell, cells


def add(commands: Commands) -> None:
    with_config(command(commands, "sync", "feed MLflow from the cells' own records"))


def call(arguments: argparse.Namespace) -> int:
    from harness.report import publish

    config = load(arguments)
    matrix = cells(config)
    sync(config, matrix)
    publish.write(config, matrix)
    console.print(f"MLflow at {config.tracking_uri} holds what {len(matrix)} cells have recorded")
    return 0


def sync(config: Config, matrix: list[Cell]) -> None:
    from harness.record.sync import sync as feed

    for cell in matrix:
        if (cell.folder / "state.json").exists():
            feed(cell.folder, config.tracking_uri)
