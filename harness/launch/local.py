"""Cells as processes of this machine, side by side.

Heavy imports happen once, in a server process from which every cell is forked.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from harness.base.errors import UserError
from harness.launch.launcher import LOST, blocked, describe_exit, environment, prepare_cell
from harness.launch.machine import free_shares, gpus_for
from harness.matrix import Cell

STARTS, PAUSE = 3, 0.5  # attempts to start a process, and seconds between them
# A terminal sends both to every process of its group, but only this one decides how cells stop.
INTERRUPTS = (signal.SIGINT, signal.SIGHUP)
ENDING = 5.0  # seconds in which cells must end after they are asked to


class CellProcess:
    """A cell that runs as a process of this machine."""

    def __init__(self, cell: Cell, gpus: Sequence[str]) -> None:
        self.cell, self.gpus = cell, gpus
        self.process = fork_cell(cell, gpus)

    def waits(self) -> bool:
        return False

    def code(self) -> int | None:
        return self.process.exitcode

    def reason(self) -> str:
        code = self.process.exitcode or 0
        if code == LOST:
            return "the process that it was forked from has ended"
        return describe_exit(code)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Local:
    """The launcher for this machine: at most `jobs` cells at a time, each with its own `gpus` if there are any."""

    def __init__(self, jobs: int, threads: int, gpus: Sequence[str] | None = None) -> None:
        self.jobs, self.gpus, self.server = jobs, gpus, import_server(threads)
        self.processes: list[CellProcess] = []

    def __enter__(self) -> Local:
        self.server.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for process in self.processes:
            process.process.terminate()
        for process in self.processes:
            process.process.join(ENDING)
            process.kill()
        self.server.__exit__(*error)

    def start(self, waiting: Sequence[Cell]) -> Iterator[CellProcess]:
        self.processes = [process for process in self.processes if process.code() is None]
        # A slice, which is a copy: the caller removes each cell from `waiting` as soon as it is yielded.
        for cell in waiting[: self.jobs - len(self.processes)]:
            gpus = self.free_gpus(cell)
            if gpus is None:  # cells start in order, so a smaller one does not overtake this one
                break
            prepare_cell(cell)
            self.processes.append(started := CellProcess(cell, gpus))
            yield started

    def free_gpus(self, cell: Cell) -> Sequence[str] | None:
        """Return free GPUs for a cell; None if too few are free."""
        if self.gpus is None:
            return ()
        taken = [(process.gpus, process.cell.config.hardware) for process in self.processes]
        return gpus_for(cell.config.hardware, free_shares(self.gpus, taken))


def fork_cell(cell: Cell, gpus: Sequence[str]) -> BaseProcess:
    """Start a cell's process, and restart the server if it has died, for example because memory ran out."""
    for _ in range(STARTS):
        # A daemon: when Python ends, it terminates daemons, and waits for all other processes without a limit.
        process = multiprocessing.get_context("forkserver").Process(
            target=run_forked_cell, args=(str(cell.folder), gpus), daemon=True
        )
        # `start` would restart the server as well, but with these signals unblocked.
        with blocked(*INTERRUPTS):
            forkserver.ensure_running()
        try:
            with no_script():
                process.start()
            return process
        except (EOFError, ConnectionError):
            time.sleep(PAUSE)
    raise UserError(
        f"the process that imports torch for all cells died {STARTS} times while importing; likely cause: this machine "
        "is out of memory, so end other programs or use fewer --jobs"
    )


@contextmanager
def no_script() -> Iterator[None]:
    """Hide the running script from multiprocessing.

    To find its target, multiprocessing runs the script again in each new process. The target of a cell is in a module,
    and a script without a main guard would start its matrix a second time.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def run_forked_cell(folder: str, gpus: Sequence[str]) -> None:
    from harness.launch import cell

    launcher = multiprocessing.parent_process()
    if launcher is None or launcher.is_alive():  # it may have been stopped while the server was still importing
        cell.main(folder, gpus, wait=0)


@contextmanager
def import_server(threads: int) -> Iterator[None]:
    """Run the server process that imports torch and its dependencies once.

    Thread counts are set before it starts, because torch reads them only when it is imported.
    """
    wanted = environment(threads)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    multiprocessing.get_context("forkserver").set_forkserver_preload(["harness.launch.imports"])
    try:
        # The server needs the resource tracker. Starting the tracker unblocks interrupts, so it must be running before
        # they are blocked for the server.
        resource_tracker.ensure_running()
        with blocked(*INTERRUPTS):
            forkserver.ensure_running()
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
