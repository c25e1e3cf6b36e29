"""Who works on a cell: one process at a time, on whatever machine sees its folder, also where no file can be locked.

    leases/7/owner     the lease of number 7, the only one there; its owner touches it every few seconds
    leases/7/over      it was given back

A lease is taken by renaming a folder to the next number, which succeeds for one process alone, on NFS too. It may be
taken when the last one was given back, when its owner is known to be dead, or when it was not touched for a minute:
its owner may only stand still, so nobody can know. A sign of life that is dated ahead of the clock is dated now by the
first process that looks at it. Hence the fence: what the owner writes into the cell's folder goes through the folder
of its lease, and the next owner removes that folder first. Whoever wakes up then finds no way to write, at whatever
place he was stopped.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.base import files
from harness.base.errors import Damaged, Taken

NAME = "leases"
BEAT = 5.0  # seconds from one sign of life to the next
PATIENCE = 60.0  # seconds without one, after which a lease may be taken over
POLL = 0.2
BUSY = os.EX_TEMPFAIL  # the exit code of a process that found another one at work on its cell


@dataclass(frozen=True)
class Owner:
    """The process that holds a lease."""

    machine: str  # where its number means this process
    host: str
    process: int
    born: str  # as the machine counts, since numbers of processes are used again

    @classmethod
    def me(cls) -> Owner:
        return cls(machine(), socket.gethostname(), os.getpid(), born(os.getpid()) or "")

    @property
    def dead(self) -> bool:
        """Returns whether it is known to be gone, which it is on its own machine alone."""
        return self.machine == machine() and born(self.process) != self.born

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


@functools.cache
def machine() -> str:
    """Returns what tells this machine, since it was started, and its numbers of processes from those of others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")


def born(process: int) -> str | None:
    """Returns when a process of this machine was started; None where there is none, or nothing but its exit code."""
    try:
        told = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if told[0] in "ZX" else told[19]


@dataclass(frozen=True)
class Lease:
    """A lease that somebody took on a cell's folder."""

    folder: Path
    number: int

    @property
    def room(self) -> Path:
        return self.folder / NAME / str(self.number)

    @property
    def owner(self) -> Owner | None:
        """Returns who took it; None where it is gone, or where nobody can read it."""
        try:
            return Owner(**files.read_json(self.room / "owner"))
        except (FileNotFoundError, Damaged, TypeError):
            return None

    @property
    def free(self) -> bool:
        """Returns whether nobody holds it any more, or gave no sign of life for long."""
        try:
            beat = (self.room / "owner").stat().st_mtime
            owner = self.owner
            if (self.room / "over").exists() or (owner is not None and owner.dead):
                return True
        except FileNotFoundError:  # it has been taken over
            return False
        # Only the clock of the file system tells how long that is: those of machines may differ.
        age = clock(self.room.parent) - beat if abs(time.time() - beat) > PATIENCE / 2 else 0.0
        if age < -PATIENCE / 2:
            self.date()
        return age > PATIENCE

    def date(self) -> None:
        """Date the last sign of life now, where a clock that was wrong has dated it ahead.

        An owner that lives dates it again; of one that is gone it gets old from now on.
        """
        with contextlib.suppress(OSError):  # gone by now, or not ours to write: then it is as old as it says
            os.utime(self.room / "owner")


def clock(folder: Path) -> float:
    """Returns the time by which files of a folder are dated; where nothing can be written, that of this machine."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError:
        return time.time()


def newest_lease(folder: Path) -> Lease | None:
    """Returns the newest lease on a cell; None before the first."""
    try:
        numbers = [int(name) for name in os.listdir(folder / NAME) if name.isdigit()]
    except FileNotFoundError:
        return None
    return Lease(folder, max(numbers)) if numbers else None


def holder(folder: Path) -> Owner | None:
    """Returns who works on the cell; None for nobody."""
    lease = newest_lease(folder)
    return None if lease is None or lease.free else lease.owner


@contextlib.contextmanager
def hold(folder: Path, wait: float | None = None) -> Iterator[Lease | None]:
    """Holds the cell: what this process writes into its folder is fenced. Yields None if another one holds it still
    after so many seconds; None waits for ever."""
    lease = take(folder, wait)
    if lease is None:
        yield None
        return
    ended = threading.Event()
    beating = threading.Thread(target=keep_alive, args=(lease, ended), daemon=True)
    beating.start()
    try:
        with fenced(lease):
            yield lease
    finally:
        ended.set()
        beating.join()
        with contextlib.suppress(FileNotFoundError):  # taken over, or removed with the cell
            (lease.room / "over").touch()


@contextlib.contextmanager
def briefly(folder: Path) -> Iterator[bool]:
    """Yields whether this process may write into the cell's folder: it works on it, or nobody does."""
    if folder in files.lease_dirs:
        yield True
        return
    with hold(folder, wait=0) as lease:
        yield lease is not None


@contextlib.contextmanager
def fenced(lease: Lease) -> Iterator[None]:
    """Lets this process write into the cell's folder as long as nobody takes the lease over."""
    files.lease_dirs[lease.folder] = lease.room
    try:
        yield
    finally:
        del files.lease_dirs[lease.folder]


def take(folder: Path, wait: float | None = None) -> Lease | None:
    """Takes the next lease as soon as the last one is free."""
    began = time.monotonic()
    while True:
        lease = newest_lease(folder)
        if (lease is None or lease.free) and (mine := next_after(folder, lease)):
            return mine
        if wait is not None and time.monotonic() - began >= wait:
            return None
        time.sleep(POLL)


def next_after(folder: Path, lease: Lease | None) -> Lease | None:
    """Takes the lease after this one, and makes writing impossible by all that came before; None where another process
    was first."""
    mine = Lease(folder, lease.number + 1 if lease else 1)
    (folder / NAME).mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".", dir=folder / NAME))
    files.write_json(fresh / "owner", asdict(Owner.me()))
    try:
        os.rename(fresh, mine.room)  # fails where it is there: it is never empty
    except OSError:
        shutil.rmtree(fresh)
        return None
    if newest_lease(folder) != mine:  # it was there, and has been taken over since
        shutil.rmtree(mine.room)
        return None
    for name in os.listdir(folder / NAME):
        if name.isdigit() and name != str(mine.number):
            os.rename(folder / NAME / name, gone := folder / NAME / f"{fresh.name}-{name}")  # from now on it is no way
            shutil.rmtree(gone, ignore_errors=True)
    return mine


def keep_alive(lease: Lease, ended: threading.Event) -> None:
    """Gives signs of life; ends the process where the lease is gone, since all that it does is lost."""
    while not ended.wait(BEAT):
        try:
            os.utime(lease.room / "owner")
        except FileNotFoundError:
            if not ended.is_set() and lease.folder.exists():
                print(Taken(lease.folder), flush=True)
                os._exit(1)
