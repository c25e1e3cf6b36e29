"""Cells as processes of this machine, side by side; one that fails or dies costs itself alone.

Heavy imports happen once, in a server process from which every cell is forked.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Protocol

from harness.matrix import Cell
from harness.record import state
from harness.record.state import State


class Watcher(Protocol):
    """Hears what happens while cells run."""

    def starting(self, running: list[Cell], waiting: int) -> None:
        """Hears of the last of the running cells before its process is there, for which the first waits long."""
        ...

    def tick(self, running: list[Cell], waiting: int) -> None: ...

    def ended(self, cell: Cell) -> None: ...


def start(cell: Cell) -> BaseProcess:
    process = multiprocessing.get_context("forkserver").Process(target=work, args=(str(cell.folder),), daemon=True)
    with no_script():
        process.start()
    return process


@contextmanager
def no_script() -> Iterator[None]:
    """Hides the script that runs. multiprocessing would run it again in the process of each cell, to find in it what
    the process is to do; what a cell does stands in a module, and a script without a guard would start its matrix anew.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def work(folder: str) -> None:
    from harness import cell

    cell.main(folder)


@contextmanager
def server(threads: int) -> Iterator[None]:
    """The process that imports torch and its kin once; thread counts are fixed before it starts."""
    wanted = {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONSAFEPATH": "1",  # what lies in the current folder is not what the server imports
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",  # bars would fill the logs of cells
        "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",  # of tqdm's lock, where a cell is stopped
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    multiprocessing.get_context("forkserver").set_forkserver_preload(["harness.cell"])
    try:
        resource_tracker.ensure_running()  # which the server needs, and which lets interrupts through when it starts
        with without_interrupts():
            forkserver.ensure_running()
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Holds back Ctrl-C, and for ever from processes that start meanwhile: a terminal sends it to all of them, but what
    to do about it is decided here alone.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def died(cell: Cell, process: BaseProcess) -> None:
    """Leave a reason where the process could not."""
    code = process.exitcode or 0
    if not State.read(cell.folder).ended:
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        state.change(cell.folder, state="failed", reason=f"its process ended by {name}{hint}")


def run(cells: list[Cell], jobs: int, watcher: Watcher, poll: float = 0.5) -> None:
    """Run the cells, `jobs` at a time, in order. Interrupted, it stops them; their checkpoints stay."""
    waiting = list(cells)
    running: list[tuple[Cell, BaseProcess, float]] = []
    hardware = cells[0].config.hardware
    with server(hardware.threads):
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    cell = waiting.pop(0)
                    cell.spec.write(cell.folder)
                    watcher.starting([*(each for each, _, _ in running), cell], len(waiting))
                    running.append((cell, start(cell), time.monotonic()))
                time.sleep(poll)
                for entry in list(running):
                    cell, process, started = entry
                    limit = hardware.timeout_minutes
                    if limit is not None and process.is_alive() and time.monotonic() - started > 60 * limit:
                        process.kill()
                        process.join()
                        reason = f"it took longer than hardware.timeout_minutes ({limit})"
                        if not State.read(cell.folder).ended:
                            state.change(cell.folder, state="failed", reason=reason)
                    if not process.is_alive():
                        process.join()
                        died(cell, process)
                        running.remove(entry)
                        watcher.ended(cell)
                watcher.tick([cell for cell, _, _ in running], len(waiting))
        finally:
            for _, process, _ in running:
                process.terminate()
            for _, process, _ in running:
                process.join()
