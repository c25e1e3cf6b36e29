"""Cells as processes of this machine: what becomes of one that takes too long or dies, whatever it had written."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from harness import config, matrix
from harness.launch import local
from harness.matrix import Cell
from harness.record.state import State

pytestmark = pytest.mark.processes


class Silent:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def starting(self, running: list[Cell], waiting: int) -> None: ...

    def tick(self, running: list[Cell], waiting: int) -> None: ...

    def ended(self, cell: Cell) -> None:
        self.heard.append(cell.key)


def sleep(folder: Path) -> None:
    time.sleep(60)


def start_work_and_sleep(folder: Path) -> None:
    State("running", durable_step=3, seconds=7.0).write(folder)
    time.sleep(60)


def finish_and_sleep(folder: Path) -> None:
    State("done").write(folder)
    time.sleep(60)


def die_at_once(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ran(work: Callable[[Path], None], folder: Path, minutes: str, patch: pytest.MonkeyPatch) -> tuple[Cell, State]:
    settings = config.load("smoke", [f"results={folder}", f"hardware.timeout_minutes={minutes}"])
    cell, other = matrix.cells(settings)

    def start(each: Cell) -> BaseProcess:
        process = multiprocessing.get_context("fork").Process(
            target=work if each is cell else print, args=(each.folder,)
        )
        process.start()
        return process

    patch.setattr(local, "start", start)
    patch.setattr(local.forkserver, "ensure_running", lambda: None)
    watcher = Silent()
    local.run([cell, other], 1, watcher, poll=0.05)
    assert watcher.heard == [cell.key, other.key], "the others go on"
    return cell, State.read(cell.folder)


@pytest.mark.parametrize("work", [sleep, start_work_and_sleep])
def test_a_cell_that_takes_too_long_fails_with_its_reason(
    work: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, found = ran(work, tmp_path, "0.005", monkeypatch)
    assert (found.state, found.reason) == ("failed", "it took longer than hardware.timeout_minutes (0.005)")
    assert found.durable_step == (3 if work is start_work_and_sleep else -1)
    assert cell.progress().state == "failed"


def test_a_cell_that_is_done_stays_done_though_its_process_lingers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = ran(finish_and_sleep, tmp_path, "0.005", monkeypatch)
    assert found == State("done")


def test_a_cell_that_dies_before_it_wrote_anything_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = ran(die_at_once, tmp_path, "null", monkeypatch)
    assert (found.state, found.reason) == ("failed", "its process ended by SIGKILL (out of memory?)")
