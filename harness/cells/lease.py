"""The lease on a cell: lets one process at a time work on it, from any machine that sees its folder.

It works by directories and the times of files, without file locks:

    leases/7/owner     lease number 7, the only one there; its owner touches the file every few seconds
    leases/7/over      the lease was given back

A process takes a lease by renaming a directory to the next number, which succeeds for one process alone, on NFS too. It
may take it when the last lease was given back, when its owner is known to be dead, or when the owner has not touched it
for a minute. Such an owner may only be paused, and may wake up later. Hence the fence: all that an owner writes into
the cell's folder goes through the directory of its lease (base/files.py), and the next owner removes that directory
first, so late writes of the old owner fail. A sign of life that is dated in the future is dated now by the first
process that sees it.

    leases/7/standing-0   the heartbeat of rank 0: its phase and step, touched with every sign of progress

The other ranks watch the heartbeats, and the launcher reads the first one after a process was killed.
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
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.base import files
from harness.base.errors import Damaged, Taken

NAME = "leases"
BEAT = 5.0  # seconds from one sign of life to the next
PATIENCE = 60.0  # seconds without one, after which a lease may be taken over
POLL = 0.2  # seconds between two checks whether a lease is free
HEARTBEAT = "standing"
LOOK = 1.0  # seconds between two checks whether ranks make progress
WIDTH = 80  # characters of a heartbeat's file: always the same number, so that one write replaces all of it
BUSY = os.EX_TEMPFAIL  # the exit code of a process whose cell another process works on


@dataclass(frozen=True)
class Owner:
    """The process that holds a lease."""

    machine: str  # the machine on which `process` is its id
    host: str
    process: int
    born: str  # its start by the machine's count, since ids of processes are used again

    @classmethod
    def me(cls) -> Owner:
        return cls(machine(), socket.gethostname(), os.getpid(), born(os.getpid()) or "")

    @property
    def dead(self) -> bool:
        """True if the process is known to be gone; only its own machine can know that."""
        return self.machine == machine() and born(self.process) != self.born

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


@functools.cache
def machine() -> str:
    """Return a text that is unique to this machine since its boot, and to its namespace of process ids."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip() + os.readlink("/proc/self/ns/pid")


def born(process: int) -> str | None:
    """Return the start time of a process of this machine; None if it does not exist, or is a zombie."""
    try:
        # In proc(5) the second field, in parentheses, is the name, which may hold spaces. Behind it, number 0 is the
        # state (field 3) and number 19 the start time (field 22).
        fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


@dataclass(frozen=True)
class Lease:
    """A lease on a cell's folder."""

    folder: Path
    number: int

    @property
    def directory(self) -> Path:
        """The directory through which its owner writes into the cell's folder."""
        return self.folder / NAME / str(self.number)

    @property
    def owner(self) -> Owner | None:
        """The process that took it; None if the lease is gone or cannot be read."""
        try:
            return Owner(**files.read_json(self.directory / "owner"))
        except (FileNotFoundError, Damaged, TypeError):
            return None

    @property
    def free(self) -> bool:
        """True if it was given back, or its owner is dead or has given no sign of life for a minute."""
        try:
            beat = (self.directory / "owner").stat().st_mtime
            owner = self.owner
            if (self.directory / "over").exists() or (owner is not None and owner.dead):
                return True
        except FileNotFoundError:  # it has been taken over
            return False
        # Only the clock of the file system that dated the sign is reliable: those of machines may differ. To read it, a
        # file must be created, so it is read only if this machine's clock does not call the sign recent.
        age = 0.0
        if abs(time.time() - beat) > PATIENCE / 2:
            age = clock(self.directory.parent) - beat
        if age < -PATIENCE / 2:
            # A wrong clock dated it in the future. Dated now, the lease of a dead owner gets older; a living one dates
            # it again.
            with contextlib.suppress(OSError):  # gone by now, or not writable: then its date counts
                os.utime(self.directory / "owner")
        return age > PATIENCE


def clock(folder: Path) -> float:
    """Return the time of the file system that dates a folder's files; this machine's time if it is read-only."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError:
        return time.time()


def newest_lease(folder: Path) -> Lease | None:
    """Return the newest lease on a cell; None before the first."""
    try:
        numbers = [int(name) for name in os.listdir(folder / NAME) if name.isdigit()]
    except FileNotFoundError:
        return None
    return Lease(folder, max(numbers)) if numbers else None


def holder(folder: Path) -> Owner | None:
    """Return the process that works on a cell, if there is one."""
    lease = newest_lease(folder)
    return None if lease is None or lease.free else lease.owner


@contextlib.contextmanager
def hold(folder: Path, wait: float | None = None) -> Iterator[Lease | None]:
    """Hold a cell while this process writes into its folder.

    Yields None if another process still holds it after `wait` seconds; with None it waits without a limit.
    """
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
        # The signs of life end first: once the lease is given back, the next owner removes its directory, and
        # `keep_alive` would end this process.
        ended.set()
        beating.join()
        with contextlib.suppress(FileNotFoundError):  # taken over, or removed with the cell
            (lease.directory / "over").touch()


@contextlib.contextmanager
def briefly(folder: Path) -> Iterator[bool]:
    """Yield whether this process may write into a cell's folder: it works on the cell, or no process does."""
    if folder in files.lease_dirs:
        yield True
        return
    with hold(folder, wait=0) as lease:
        yield lease is not None


@contextlib.contextmanager
def fenced(lease: Lease) -> Iterator[None]:
    """Send what this process writes into the cell's folder through the directory of a lease."""
    files.lease_dirs[lease.folder] = lease.directory
    try:
        yield
    finally:
        del files.lease_dirs[lease.folder]


def take(folder: Path, wait: float | None = None) -> Lease | None:
    """Take the next lease as soon as the last one is free."""
    began = time.monotonic()
    while True:
        lease = newest_lease(folder)
        if (lease is None or lease.free) and (mine := next_after(folder, lease)):
            return mine
        if wait is not None and time.monotonic() - began >= wait:
            return None
        time.sleep(POLL)


def next_after(folder: Path, lease: Lease | None) -> Lease | None:
    """Take the lease after this one and end the writing of earlier owners; None if another process was first."""
    mine = Lease(folder, lease.number + 1 if lease else 1)
    (folder / NAME).mkdir(parents=True, exist_ok=True)
    fresh = folder / NAME / f".{uuid.uuid4().hex}"
    fresh.mkdir()  # not by tempfile, whose folders no other user can read
    files.write_json(fresh / "owner", asdict(Owner.me()))
    try:
        os.rename(fresh, mine.directory)  # fails if it exists: it is never empty
    except OSError:
        shutil.rmtree(fresh)
        return None
    if newest_lease(folder) != mine:  # this number was used before, and has been taken over since
        shutil.rmtree(mine.directory)
        return None
    for name in os.listdir(folder / NAME):
        if name.isdigit() and name != str(mine.number):
            gone = folder / NAME / f"{fresh.name}-{name}"
            os.rename(folder / NAME / name, gone)  # from now on the old owner can no longer write
            shutil.rmtree(gone, ignore_errors=True)
    return mine


def keep_alive(lease: Lease, ended: threading.Event) -> None:
    """Give signs of life, and end the process when its lease is gone: it could write nothing any more."""
    while not ended.wait(BEAT):
        try:
            os.utime(lease.directory / "owner")
        except FileNotFoundError:
            if not ended.is_set() and lease.folder.exists():
                print(Taken(lease.folder), flush=True)
                os._exit(1)  # sys.exit would end only this thread


# Heartbeats


class Heartbeat:
    """The phase and the step of one process; the process of a cell creates it and passes it on to its parts."""

    def __init__(self) -> None:
        self.phase, self.step = "", 0
        self.count = 0  # signs of progress so far
        self.lease_dir: Path | None = None
        self.file: int | None = None

    def __str__(self) -> str:
        """Return the phase and the step, as far as they are known."""
        step = f"step {self.step}" if self.step else ""
        return " of ".join(text for text in (self.phase, step) if text)

    @contextlib.contextmanager
    def at(self, phase: str) -> Iterator[None]:
        """Name a phase. After an error the name is kept, to report the phase in which the error happened."""
        before = self.phase
        self.enter(phase)
        yield
        self.enter(before)

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.forward()
        if self.file is not None:
            os.pwrite(self.file, str(self).ljust(WIDTH)[:WIDTH].encode(), 0)

    def forward(self) -> None:
        """Count a sign of progress."""
        self.count += 1

    @contextlib.contextmanager
    def kept(self, lease_dir: Path, rank: int) -> Iterator[None]:
        """Also write the heartbeat to a file in this directory, from the beginning of a cell."""
        self.file = os.open(lease_dir / f"{HEARTBEAT}-{rank}", os.O_WRONLY | os.O_CREAT, 0o666)
        self.lease_dir, self.step = lease_dir, 0
        self.enter("")
        try:
            yield
        finally:
            os.close(self.file)
            self.file = self.lease_dir = None

    def watch(self, lease_dir: Path, rank: int, seconds: float, stalled: Callable[[str], None]) -> None:
        """Show the other ranks that this one makes progress; call `stalled` if no rank makes any for this many seconds.

        All ranks then wait for the one whose last sign of progress is the oldest, and its phase is reported.
        """
        shown = -1
        seen: dict[Path, tuple[int, float]] = {}  # the last change of each rank's file, and when it was noticed
        while self.lease_dir == lease_dir:  # until `kept` ends
            if shown != self.count:
                shown = self.count
                os.utime(lease_dir / f"{HEARTBEAT}-{rank}")
            now = time.monotonic()
            for path in lease_dir.glob(f"{HEARTBEAT}-*"):
                # Only compared with an earlier one of the same file, since the clocks of machines may differ.
                changed = path.stat().st_mtime_ns
                if path not in seen or seen[path][0] != changed:
                    seen[path] = changed, now
            if now - max(noticed for _, noticed in seen.values()) > seconds:
                last = min(seen, key=lambda path: seen[path][1])
                where = last.read_text("utf-8").strip() or "its beginning"
                stalled(f"rank {last.name.rpartition('-')[2]} has stood still in {where}")
                return
            time.sleep(min(LOOK, seconds / 4))


def last_heartbeat(lease_dir: Path) -> str:
    """Return the phase and the step of the process that last worked in this directory; empty if there is none."""
    try:
        return (lease_dir / f"{HEARTBEAT}-0").read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
