"""Runs cells wherever a launcher puts them; one that fails or dies costs itself alone.

A launcher knows machines and queues, and nothing of what a cell does. All that becomes of a cell stands in its folder,
which the cell's process and this one share.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Protocol

from harness.base import files
from harness.base.errors import Unwritten, UserError
from harness.cells import lease, state
from harness.cells.heartbeat import last_heartbeat
from harness.cells.repair import mend
from harness.cells.state import State
from harness.matrix import Cell


class Running(Protocol):
    """A cell that a launcher has started."""

    cell: Cell

    def waits(self) -> str | None:
        """Returns what it waits for in a queue; None where it has a process."""
        ...

    def code(self) -> int | None:
        """Returns the exit code of its process, minus the signal that ended it; None before its end."""
        ...

    def reason(self) -> str:
        """Returns why its process ended."""
        ...

    def kill(self) -> None: ...


class Launcher(Protocol):
    """Starts cells; at the end of its context it stops those that run, which keep their checkpoints."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def start(self, waiting: Sequence[Cell]) -> Iterable[Running]:
        """Starts as many of the first of these cells as there is room for; raises Unprepared for one that cannot be
        prepared."""
        ...


class Watcher(Protocol):
    """Hears what happens while cells run."""

    def starting(self, running: list[Cell], waiting: int) -> None:
        """Hears of the first cell before its process is there, for which it waits long."""
        ...

    def tick(self, running: list[Cell], waiting: int) -> None: ...

    def elsewhere(self, cell: Cell, owner: str) -> None:
        """Hears that another process works on a cell, which is waited for."""
        ...

    def ended(self, cell: Cell, reason: str | None) -> None:
        """Hears of its end; and of the reason, where the launcher is who gives it."""
        ...


class Unprepared(Exception):
    """A cell's folder cannot be written, by which that cell has failed alone."""

    def __init__(self, cell: Cell, reason: str) -> None:
        super().__init__(reason)
        self.cell = cell


LOST = 255  # the exit code of a process whose end nobody could see, since the one that it was forked from has ended
# Seconds for a process to end once its cell has: a thread may keep it alive for ever. A launcher may need most of them
# to hear that a machine was lost, and then starts the cell again.
LINGERING = 60.0


class Life:
    """The time of a cell's process."""

    def __init__(self, running: Running) -> None:
        self.running, self.cell, self.before = running, running.cell, State.known(running.cell.folder)
        self.began: float | None = None
        self.over: float | None = None  # since when there is nothing left to do

    @property
    def place(self) -> str:
        """Returns where it stood last, as the end of a sentence. What an earlier process left went with its lease when
        this cell was prepared."""
        last = lease.newest_lease(self.cell.folder)
        where = last_heartbeat(last.room) if last else ""
        return f" in {where}" if where else ""

    def limit(self) -> None:
        """Ends a process that takes too long, or that goes on though its cell has ended."""
        if self.running.waits():
            return
        folder, now = self.cell.folder, time.monotonic()
        minutes, state = self.cell.config.hardware.timeout_minutes, State.known(folder)
        self.began = self.began or now
        ended = state.ended and state != self.before
        self.over = (self.over or now) if ended else None
        if self.over is not None:
            if now - self.over > LINGERING:
                self.running.kill()
        elif minutes is not None and now - self.began > 60 * minutes:
            self.running.kill()
            failed(folder, f"it took longer than hardware.timeout_minutes ({minutes}){self.place}")


def run(cells: Sequence[Cell], launcher: Launcher, watcher: Watcher, poll: float = 0.5) -> None:
    """Runs the cells in order, and waits for those that others run. Interrupted, it stops its own."""
    waiting, running, elsewhere = list(cells), list[Life](), list[Cell]()
    again: set[str] = set()  # cells whose process was lost, which is no fault of theirs: they are started once more
    watcher.starting(waiting[:1], len(waiting) - 1)
    with launcher:
        while waiting or running or elsewhere:
            try:
                for started in launcher.start(waiting) if waiting else ():
                    waiting.remove(started.cell)
                    running.append(Life(started))
            except Unprepared as error:
                waiting.remove(error.cell)
                failed(error.cell.folder, str(error))
                watcher.ended(error.cell, str(error))
            time.sleep(poll)
            for life in list(running):
                cell, code = life.cell, life.running.code()
                if code is None:
                    life.limit()
                    continue
                if code != lease.BUSY and lease.holder(cell.folder):
                    continue  # whose end cannot be seen from here: it is believed after a minute without a sign of life
                running.remove(life)
                if code == lease.BUSY:
                    elsewhere.append(cell)
                    if owner := lease.holder(cell.folder):
                        watcher.elsewhere(cell, str(owner))
                    continue
                if code == LOST and cell.id not in again:
                    again.add(cell.id)
                    waiting.insert(0, cell)
                    continue
                # Without a code it is done, or was asked to stop where it stood.
                reason = life.running.reason() + life.place if code else None
                if reason:
                    failed(cell.folder, reason)
                watcher.ended(cell, reason)
            for cell in [cell for cell in elsewhere if not lease.holder(cell.folder)]:
                elsewhere.remove(cell)
                if State.known(cell.folder).ended:
                    watcher.ended(cell, None)
                else:
                    waiting.insert(0, cell)  # it was stopped there
            queued = [life for life in running if life.running.waits()]
            at_work = [life.cell for life in running if life not in queued]
            watcher.tick([*at_work, *elsewhere], len(waiting) + len(queued))


def prepare(cell: Cell) -> None:
    """Mends the records of a cell, and writes down what its process needs to know, unless another one works on it."""
    try:
        with lease.briefly(cell.folder) as ours:
            if ours:
                mend(cell.folder, cell.spec)
    except Unwritten as error:
        raise Unprepared(cell, str(error)) from error
    except OSError as error:
        if (why := files.unwritten(error)) is None:
            raise
        raise Unprepared(cell, str(Unwritten(Path(error.filename or cell.folder), why))) from error


def check_extra(name: str, package: str) -> None:
    """Refuses a launcher whose package is not installed."""
    if find_spec(package) is None:
        raise UserError(f"--launcher {name} needs the extra {name}: pip install 'entrobench[{name}]'")


def environment(threads: int) -> dict[str, str]:
    """Returns what a cell's process finds in its environment, before it imports anything."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONSAFEPATH": "1",  # what lies in the current folder is not what it imports
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",  # bars would fill the logs of cells
        "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",  # of tqdm's lock, where a cell is stopped
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }


def failed(folder: Path, reason: str) -> None:
    """Leaves a reason in a cell's folder where its own process left none. On a disk that is full that may not be
    possible: the cell then counts as stopped, and the others go on."""
    with contextlib.suppress(OSError), lease.briefly(folder) as ours:
        if ours and not State.known(folder).ended:
            state.change(folder, state="failed", reason=reason)


def ended_by(code: int) -> str:
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"its process ended by {name}{' (out of memory?)' if code == -signal.SIGKILL else ''}"
