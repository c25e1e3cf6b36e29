"""Where this process stands: in which phase of which step, and since when it has not come forward.

The first rank of a cell writes it into a file too, where it can be read of a process that was killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "standing"
WIDTH = 80  # characters of the file, which one write replaces


class Standing:
    def __init__(self) -> None:
        self.phase, self.step = "", 0
        self.since = time.monotonic()
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
        self.since = time.monotonic()

    @contextmanager
    def kept(self, room: Path) -> Iterator[None]:
        """Writes it into a folder too."""
        self.file = os.open(room / NAME, os.O_WRONLY | os.O_CREAT)
        yield
        os.close(self.file)
        self.file = None


here = Standing()  # of this process


def of(room: Path) -> str:
    """Returns where the process stood that kept it in this folder, or nothing."""
    try:
        return (room / NAME).read_text().strip()
    except FileNotFoundError:
        return ""
