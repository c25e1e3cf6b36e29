"""Shared by the benchmarks: a trainer as a cell would build it, and a table."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from harness import config
from harness.matrix import Cell
from harness.train import parts
from harness.trainer import Trainer
from harness.verify.pool import VerifierPool

console = Console(width=120, highlight=False)
logging.disable_progress_bar()
logging.set_verbosity_error()


def demo_trainer(method: str, folder: Path, overrides: Sequence[str] = (), model: str = "countdown-tiny") -> Trainer:
    """Return a trainer of the demo's configuration, before its first step."""
    settings = config.load_config("demo", overrides)
    cell = Cell.of(settings, method, "countdown", model, seed=0)
    trainer = Trainer(parts.build_parts(cell.spec, VerifierPool(), say=lambda _: None), folder)
    trainer.engine.load(trainer.policy.module)
    return trainer


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, and the machine it was measured on."""
    table = Table(*columns, title=title, title_justify="left", box=None, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n", style="dim")
