"""The loop that runs cells with any launcher; a cell that fails does not affect the others.

A launcher knows machines and queues, but not the work of a cell. Everything about a cell's progress and result is in
its folder, which the cell's process shares with this one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from harness.base import files
from harness.base.errors import Unwritten, UserError
from harness.base.processes import python_command
from harness.cells import lease, state
from harness.cells.lease import last_heartbeat
from harness.cells.repair import mend
from harness.cells.state import Progress, State
from harness.matrix import Cell

RECENT = 10  # steps whose metrics are kept, for the sparklines
NOT_YET_RUNNING = ("planned", "stale", "failed")  # states of a cell until its process writes that it runs


@dataclass(frozen=True)
class Snapshot:
    """A cell with its progress at one moment, read once: each look at a small file is a round trip on some disks."""

    cell: Cell
    progress: Progress

    @classmethod
    def take(cls, cell: Cell) -> Snapshot:
        return cls(cell, cell.progress(RECENT))

    @property
    def step(self) -> int:
        """The step that the cell has reached; before its process runs, the checkpoint from which it will resume."""
        if self.progress.state in NOT_YET_RUNNING:
            return max(self.progress.record.durable_step, 0)
        return self.progress.step

    @property
    def phase(self) -> str:
        """The current activity of the cell where its numbers do not show it."""
        if self.progress.state in NOT_YET_RUNNING:
            return "starting its process"
        if self.progress.reason is not None or self.progress.step > 0:
            return self.progress.reason or ""
        return "evaluating before training" if self.progress.record.device else "loading the model"


class Running(Protocol):
    """A cell that a launcher has started."""

    cell: Cell

    def waits(self) -> bool:
        """Return whether it has no process yet."""
        ...

    def code(self) -> int | None:
        """Return the exit code of its process (minus the signal that ended it); None while it runs."""
        ...

    def reason(self) -> str:
        """Return why its process ended."""
        ...

    def kill(self) -> None: ...


class Launcher(contextlib.AbstractContextManager[Any, None], Protocol):
    """The means to start cells. At the end of its context it stops the running cells; their checkpoints are kept."""

    def start(self, waiting: Sequence[Cell]) -> Iterable[Running]:
        """Start as many of these cells, in order, as there is room for.

        Raises Unprepared for a cell whose folder cannot be written.
        """
        ...


class Watcher:
    """The observer of a run, which ignores everything that it does not override."""

    def starting(self, running: list[Cell], waiting: int) -> None:
        """Receive the first cell before it has a process, because starting the first process takes seconds."""

    def tick(self, running: list[Snapshot], waiting: int) -> None:
        """Receive the running cells, twice a second."""

    def elsewhere(self, cell: Cell, owner: str) -> None:
        """Receive a cell that another run is working on, and that this run waits for."""

    def ended(self, cell: Cell, reason: str | None) -> None:
        """Receive a cell that has ended, with the reason if the launcher gave one."""


class Unprepared(Exception):
    """A cell whose folder cannot be written. That cell fails; the others are not affected."""

    def __init__(self, cell: Cell, reason: str) -> None:
        super().__init__(reason)
        self.cell = cell


# The exit code that multiprocessing gives to a process whose end was not observed, because the server that it was
# forked from died first.
LOST = 255
# Seconds that a process may live on after its cell has ended, since a thread can keep it alive forever. A launcher may
# need most of this time to learn that a machine was lost; killing earlier would turn that restart into a failure.
LINGERING = 60.0


class Life:
    """One process of a cell, with the times that limit it."""

    def __init__(self, running: Running) -> None:
        self.running, self.cell = running, running.cell
        self.began: float | None = None
        self.ended_since: float | None = None  # when the cell was first seen to have ended

    @property
    def place(self) -> str:
        """The last phase that its process reported, as the end of a sentence.

        The report cannot be an earlier process's: that was removed with its lease when this cell was prepared.
        """
        newest_lease = lease.newest_lease(self.cell.folder)
        phase = last_heartbeat(newest_lease.directory) if newest_lease else ""
        return f" in {phase}" if phase else ""

    def limit(self, record: State) -> None:
        """Kill a process that takes too long, or that lives on after its cell has ended."""
        now = time.monotonic()
        minutes = self.cell.config.hardware.timeout_minutes
        self.began = self.began or now
        if not record.ended:
            self.ended_since = None
        elif self.ended_since is None:
            self.ended_since = now
        if self.ended_since is not None:
            if now - self.ended_since > LINGERING:
                self.running.kill()
        elif minutes is not None and now - self.began > 60 * minutes:
            # Before the reason is written: while the process lives, it holds the lease.
            self.running.kill()
            reason = f"it took longer than hardware.timeout_minutes ({minutes}){self.place}"
            mark_failed(self.cell.folder, reason)


@dataclass
class Run:
    """The cells of a run: waiting, at work in our processes, or at work in another run."""

    watcher: Watcher
    waiting: list[Cell]
    running: list[Life] = field(default_factory=list)
    elsewhere: list[Cell] = field(default_factory=list)
    # Cells whose process was lost through no fault of their own; each restarts only once.
    restarted: set[str] = field(default_factory=set)

    def start(self, launcher: Launcher) -> None:
        try:
            # One by one: a launcher may have started some cells before it raises Unprepared for the next one.
            for started in launcher.start(self.waiting) if self.waiting else ():
                self.waiting.remove(started.cell)
                self.running.append(Life(started))
        except Unprepared as error:
            self.waiting.remove(error.cell)
            mark_failed(error.cell.folder, str(error))
            self.watcher.ended(error.cell, str(error))

    def observe(self) -> tuple[list[Snapshot], int]:
        """Settle cells that have ended; return snapshots of those at work, and how many processes have yet to begin."""
        snapshots, queued = list[Snapshot](), 0
        for life in list(self.running):
            cell, code = life.cell, life.running.code()
            if code is None and life.running.waits():  # its time limit begins with its process
                queued += 1
            elif code is None:
                snapshot = Snapshot.take(cell)
                snapshots.append(snapshot)
                life.limit(snapshot.progress.record)
            elif code != lease.BUSY and lease.holder(cell.folder):
                # Its process may still write: the end of a process on another machine cannot be observed from here, so
                # it counts as ended after a minute without a sign of life.
                snapshots.append(Snapshot.take(cell))
            else:
                self.running.remove(life)
                self.settle(life, code)
        return snapshots, queued

    def settle(self, life: Life, code: int) -> None:
        cell = life.cell
        if code == lease.BUSY:
            self.elsewhere.append(cell)
            if owner := lease.holder(cell.folder):
                self.watcher.elsewhere(cell, str(owner))
        elif code == LOST and cell.id not in self.restarted:
            self.restarted.add(cell.id)
            self.waiting.insert(0, cell)
        else:
            # With exit code 0 the cell is done, or it was asked to stop and will resume.
            reason = None
            if code:
                # The place is read first: the lease that `mark_failed` takes removes its record.
                reason = life.running.reason() + life.place
                mark_failed(cell.folder, reason)
            self.watcher.ended(cell, reason)

    def take_back(self) -> None:
        """Report the cells that another run has ended, and queue those that it left unfinished."""
        for cell in [cell for cell in self.elsewhere if not lease.holder(cell.folder)]:
            self.elsewhere.remove(cell)
            if State.known(cell.folder).ended:
                self.watcher.ended(cell, None)
            else:
                self.waiting.insert(0, cell)


def run_cells(cells: Sequence[Cell], launcher: Launcher, watcher: Watcher, poll: float = 0.5) -> None:
    """Run the cells in order, and wait for cells that other runs are working on. If interrupted, stop our own."""
    run = Run(watcher, list(cells))
    watcher.starting(run.waiting[:1], len(run.waiting) - 1)
    with launcher:
        while run.waiting or run.running or run.elsewhere:
            run.start(launcher)
            time.sleep(poll)
            snapshots, queued = run.observe()
            run.take_back()
            snapshots += [Snapshot.take(cell) for cell in run.elsewhere]
            watcher.tick(snapshots, len(run.waiting) + queued)


def prepare_cell(cell: Cell) -> None:
    """Repair a cell's records and write its config.yaml for its process, unless another process is working on it."""
    try:
        with lease.briefly(cell.folder) as ours:
            if ours:
                mend(cell.folder, cell.spec)
    except Unwritten as error:  # an OSError as well, whose message is already a sentence
        raise Unprepared(cell, str(error)) from error
    except OSError as error:
        why = files.unwritten(error)
        if why is None:
            raise
        raise Unprepared(cell, str(Unwritten(Path(error.filename or cell.folder), why))) from error


def check_extra(name: str, package: str) -> None:
    """Refuse a launcher whose package is not installed."""
    if find_spec(package) is None:
        raise UserError(f"--launcher {name} needs the extra {name}: pip install -e '.[{name}]'")


def environment(threads: int) -> dict[str, str]:
    """Return the environment variables that a cell's process must have before its first import."""
    return {
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait take cores from other cells. Two cells of two threads each on two cores took
        # ten times as long as one alone, and a third longer with this setting (docs/speed.md).
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive"),
        "PYTHONSAFEPATH": "1",  # files in the current folder must not shadow modules
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",  # progress bars would fill the logs of cells
        "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",  # tqdm's lock causes it when a cell is stopped
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }


def mark_failed(folder: Path, reason: str) -> None:
    """Write a reason into the folder of a cell, unless its process has left one.

    On a full disk that may be impossible: the cell then counts as stopped, and the others continue.
    """
    with contextlib.suppress(OSError), lease.briefly(folder) as ours:
        if ours and not State.known(folder).ended:
            state.change(folder, state="failed", reason=reason)


def describe_exit(code: int) -> str:
    """Return a sentence about a process that ended with this code, or by a signal if the code is negative."""
    ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    # An unexpected SIGKILL nearly always comes from the kernel when memory runs out.
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"its process ended by {ending}{hint}"


# The processes of a cell on a machine of a cluster


def torchrun_variables(rank: int, local: int, world: int, address: str, port: int) -> dict[str, str]:
    """Return the variables by which ranks find each other, as torchrun sets them; none for a single rank."""
    if world == 1:
        return {}
    numbers = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": world, "MASTER_PORT": port}
    return {"MASTER_ADDR": address, **{name: str(number) for name, number in numbers.items()}}


def start_rank(folder: str, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a rank of a cell. It ends with this process, even if this one is killed, because its stdin then closes.

    SIGUSR2 is blocked in it and in its children: SLURM sends that signal to every process of a job at once, and its
    default action would end a process without a handler.
    """
    command = python_command("from harness.launch import cell", "cell.run_rank()", folder)
    with blocked(signal.SIGUSR2):
        return subprocess.Popen(command, env={**os.environ, **settings}, stdin=subprocess.PIPE)


@contextlib.contextmanager
def blocked(*signals: signal.Signals) -> Iterator[None]:
    """Block signals here for a moment, and for good in processes that start meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a rank to stop after its current step, with a checkpoint; a request to rank 0 stops the whole cell."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has already ended
        process.stdin.write(b"\n")
        process.stdin.flush()
