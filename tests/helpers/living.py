"""Processes that work on a cell."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from patience import HANG


def at_work(folder: Path) -> list[str]:
    """Return the processes whose command line names the folder."""
    result = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            result += [process.parent.name] if str(folder).encode() in process.read_bytes() else []
    return result


def wait_until(holds: Callable[[], bool], seconds: float = HANG) -> None:
    """Wait until a condition holds, long enough for a busy machine."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
