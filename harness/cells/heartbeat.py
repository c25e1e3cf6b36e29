"""The heartbeat of a cell's process: its phase and step, and a count that grows with every sign of progress.

Each rank of a cell also writes it to a file in the lease's directory. The other ranks watch that file, and the launcher
reads it after a process was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "standing"
LOOK = 1.0  # seconds between two checks whether ranks make progress
WIDTH = 80  # characters of the file: always the same number, so that one write replaces all of it


def no_progress() -> None:
    """Ignore a sign of progress: the default for code that gives signs and may run without a heartbeat."""


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

    @contextmanager
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

    @contextmanager
    def kept(self, lease_dir: Path, rank: int) -> Iterator[None]:
        """Also write the heartbeat to a file in this directory, from the beginning of a cell."""
        self.file = os.open(lease_dir / f"{NAME}-{rank}", os.O_WRONLY | os.O_CREAT, 0o666)
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
                os.utime(lease_dir / f"{NAME}-{rank}")
            now = time.monotonic()
            for path in lease_dir.glob(f"{NAME}-*"):
                # Only compared with an earlier one of the same file, since the clocks of machines may differ.
                changed = path.stat().st_mtime_ns
                if path not in seen or seen[path][0] != changed:
                    seen[path] = changed, now
            if now - max(noticed for _, noticed in seen.values()) > seconds:
                last = min(seen, key=lambda path: seen[path][1])
                where = last.read_text().strip() or "its beginning"
                stalled(f"rank {last.name.rpartition('-')[2]} has stood still in {where}")
                return
            time.sleep(min(LOOK, seconds / 4))


def last_heartbeat(lease_dir: Path) -> str:
    """Return the phase and the step of the process that last worked in this directory; empty if there is none."""
    try:
        return (lease_dir / f"{NAME}-0").read_text().strip()
    except FileNotFoundError:
        return ""
