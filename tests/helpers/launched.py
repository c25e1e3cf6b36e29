"""Cells as a launcher leaves them, run here or by several ranks, and watchers of a launcher."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cells import write_cell

from harness import config
from harness.launch import cell, launcher
from harness.launch.launcher import Snapshot
from harness.matrix import Cell

# Critic, reference model, entropy with gradient, a control with a memory, batch statistics: everything ranks may share.
METHOD = "ppo(kl_coef=0.01)+clip_b(share=0.05)+adaptive_entropy(target=9,delta=0.01,highest=1)"
SETTINGS = ["train.steps=6", "train.prompts=8", "train.updates=2", "train.group=8", "train.lr=1e-3"]
SETTINGS += ["train.warmup_steps=0", "checkpoint.every=2", "checkpoint.keep_last=true", "dynamics.every=2"]
SETTINGS += ["baseline=grpo", "methods=[grpo]"]
SETTINGS += ["eval.every=2", "eval.problems=9", "eval.samples=4", "eval.k=2", "hardware.micro_tokens=400"]
ONE = "0123456789ab"  # the key of a cell whose number of steps grows


def planned(folder: Path, *overrides: str) -> Cell:
    settings = config.load_config("demo", [*SETTINGS, "hardware.device=cpu", f"results={folder}", *overrides])
    return Cell.of(settings, METHOD, "countdown", "countdown-tiny", seed=0)


def write_launched(
    folder: Path, *overrides: str, method: str = METHOD, model: str = "countdown-tiny", key: str | None = None
) -> None:
    """Write a cell as its launcher does; under a key of its own where other steps are the same cell."""
    settings = config.load_config("demo", [*SETTINGS, *overrides])
    spec = Cell.of(settings, method, "countdown", model, seed=0).spec
    write_cell(folder, dataclasses.replace(spec, id=key or spec.id), "running", made=None)


def divided(folder: Path, count: int) -> int:
    with pytest.raises(SystemExit) as end:
        cell.divide(folder, count)
    assert isinstance(end.value.code, int)
    return end.value.code


def lines(folder: Path) -> dict[int, dict[str, float]]:
    """Return the metrics by step, without those that depend on a clock."""
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: {k: v for k, v in line["metrics"].items() if not k.startswith("time/")} for line in found}


def check_lines(one: Path, other: Path, steps: int) -> None:
    """Compare what a cell has logged on other ranks with that of one process."""
    whole, again = lines(one), lines(other)
    assert list(again) == list(whole) == list(range(steps + 1))
    for step, record in whole.items():
        assert again[step] == pytest.approx(record, rel=1e-3, abs=1e-5), step


class Watcher(launcher.Watcher):
    """Records the cells that have ended, and acts while cells run."""

    def __init__(self, tick: Callable[[list[Cell]], None] = lambda running: None) -> None:
        self.act, self.heard = tick, list[Cell]()

    def tick(self, running: list[Snapshot], waiting: int) -> None:
        self.act([snapshot.cell for snapshot in running])

    def ended(self, cell: Cell, reason: str | None) -> None:
        self.heard.append(cell)
