"""Where this process stands: in which phase of which step, and since when it has not come forward.

Each rank of a cell writes it into a file too, where the others see it, and where it is read when a process was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "standing"
LOOK = 1.0  # seconds from one look at whether ranks come forward to the next
WIDTH = 80  # characters of the file, which one write replaces


class Standing:
    def __init__(self) -> None:
        self.phase, self.step = "", 0
        self.count = 0  # of the times that it came forward
        self.room: Path | None = None
        self.file: int | None = None

    def __str__(self) -> str:
        """Returns the phase with its step, as far as there are any."""
        return " of ".join(filter(None, (self.phase, f"step {self.step}" if self.step else "")))

    @contextmanager
    def at(self, phase: str) -> Iterator[None]:
        """Names what is done here. Where an error ends it, the name stays, which tells the place of the error."""
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
        """Notes that the phase has come forward."""
        self.count += 1

    @contextmanager
    def kept(self, room: Path, rank: int) -> Iterator[None]:
        """Writes it into a folder too, from the beginning on."""
        self.file = os.open(room / f"{NAME}-{rank}", os.O_WRONLY | os.O_CREAT, 0o666)
        self.room, self.step = room, 0
        self.enter("")
        try:
            yield
        finally:
            os.close(self.file)
            self.file = self.room = None

    def watch(self, room: Path, rank: int, seconds: float, still: Callable[[str], None]) -> None:
        """Tells the others that this rank comes forward, and calls `still` when no rank has for so long: then all wait
        for the one that did before the others."""
        told, heard = -1, dict[Path, tuple[int, float]]()
        while self.room == room:
            if told != self.count:
                told = self.count
                os.utime(room / f"{NAME}-{rank}")
            now = time.monotonic()
            for path in room.glob(f"{NAME}-*"):
                stamp = path.stat().st_mtime_ns
                if path not in heard or heard[path][0] != stamp:
                    heard[path] = stamp, now
            if now - max(since for _, since in heard.values()) > seconds:
                last = min(heard, key=lambda path: heard[path][1])
                where = last.read_text().strip() or "its beginning"
                still(f"rank {last.name.rpartition('-')[2]} has stood still in {where}")
                return
            time.sleep(min(LOOK, seconds / 4))


here = Standing()  # of this process


def of(room: Path) -> str:
    """Returns where the process stood that kept it in this folder, or nothing."""
    try:
        return (room / f"{NAME}-0").read_text().strip()
    except FileNotFoundError:
        return ""
