"""Shared by the benchmarks: a trainer as a cell would build it, and a table."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from transformers.utils import logging

from harness import config
from harness.base.devices import processor
from harness.matrix import Cell
from harness.train import parts
from harness.train.trainer import Trainer
from harness.verify.pool import VerifierPool

logging.disable_progress_bar()
logging.set_verbosity_error()


def demo_trainer(
    method: str, folder: Path, overrides: Sequence[str] = (), model: str = "countdown-tiny", task: str = "countdown"
) -> Trainer:
    """Return a trainer of the demo's configuration, before its first step."""
    settings = config.load_config("demo", overrides)
    cell = Cell.of(settings, method, task, model, seed=0)
    trainer = Trainer(parts.build_parts(cell.spec, VerifierPool(), say=lambda _: None), folder)
    trainer.engine.load(trainer.policy.module)
    return trainer


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as Markdown, and the machine and the load under which it was measured."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    print(f"{title}\n")
    for row in (columns, rule, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print(f"| {' | '.join(cells)} |")
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(
        f"\n{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load} at the end\n",
        flush=True,
    )
