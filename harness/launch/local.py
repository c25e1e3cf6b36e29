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
from types import ModuleType, TracebackType

from harness.base.errors import UserError
from harness.launch.launcher import LOST, Unprepared, ended_by, environment, prepare
from harness.launch.pool import Pool, Taken
from harness.matrix import Cell

STARTS, PAUSE = 3, 0.5  # of a process: so often, so many seconds apart
ENDING = 5.0  # seconds for cells to end when they are asked to


class Process:
    """A cell that runs as a process of this machine."""

    def __init__(self, cell: Cell, taken: Taken | None) -> None:
        self.cell, self.taken = cell, taken
        self.process = start(cell, taken.gpus if taken else ())

    def waits(self) -> None:
        return None

    def code(self) -> int | None:
        return self.process.exitcode

    def reason(self) -> str:
        code = self.process.exitcode or 0
        return "the process that it was forked from has ended" if code == LOST else ended_by(code)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Local:
    """Starts cells on this machine, so many at a time, and with GPUs of their own if there is a pool of them."""

    def __init__(self, jobs: int, threads: int, pool: Pool | None = None) -> None:
        self.jobs, self.pool, self.server = jobs, pool, server(threads)
        self.processes: list[Process] = []

    def __enter__(self) -> Local:
        self.server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self.processes:
            each.process.terminate()
        for each in self.processes:
            each.process.join(ENDING)
            each.kill()
        self.server.__exit__(kind, error, trace)

    def start(self, waiting: Sequence[Cell]) -> Iterator[Process]:
        for ended in [each for each in self.processes if each.code() is not None]:
            self.processes.remove(ended)
            if self.pool and ended.taken:
                self.pool.give_back(ended.taken)
        for cell in waiting[: self.jobs - len(self.processes)]:
            taken = self.pool.take(cell.config.hardware) if self.pool else None
            if self.pool and taken is None:
                break
            try:
                prepare(cell)
            except Unprepared:
                if self.pool and taken:
                    self.pool.give_back(taken)
                raise
            self.processes.append(started := Process(cell, taken))
            yield started


def start(cell: Cell, gpus: Sequence[str]) -> BaseProcess:
    """Starts a cell; and the server anew where that has ended, as when the system lacks memory."""
    for _ in range(STARTS):
        process = multiprocessing.get_context("forkserver").Process(
            target=work, args=(str(cell.folder), gpus), daemon=True
        )
        with without_interrupts():
            forkserver.ensure_running()
        try:
            with no_script():
                process.start()
            return process
        except (EOFError, ConnectionError):
            time.sleep(PAUSE)
    raise UserError(
        f"the process that imports torch for all cells was ended {STARTS} times while it did so; likely cause: this "
        "machine lacks memory, so end what else runs here"
    )


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


def work(folder: str, gpus: Sequence[str]) -> None:
    from harness import cell

    cell.main(folder, gpus, wait=0)


@contextmanager
def server(threads: int) -> Iterator[None]:
    """The process that imports torch and its kin once; thread counts are fixed before it starts."""
    wanted = environment(threads)
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
    """Holds back Ctrl-C and SIGHUP, and for ever from processes that start meanwhile: a terminal sends them to all of
    them, but what to do about it is decided here alone.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
