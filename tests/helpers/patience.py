"""Time limits and waiting on a machine that may be busy with other work."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

HANG = 900.0  # seconds after which a process counts as hung; no other work on the machine delays it by that much


def patient(seconds: float) -> float:
    """Return a limit for an idle machine, multiplied by the number of processes per core."""
    processes_per_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * max(1.0, processes_per_core)


def at_work(folder: Path) -> list[str]:
    """Return the processes whose command line names the folder."""
    result = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            result += [process.parent.name] if str(folder).encode() in process.read_bytes() else []
    return result


def wait_until(holds: Callable[[], bool], pause: float = 0.1) -> None:
    """Wait until a condition holds, long enough for a busy machine; it is looked at after each pause."""
    deadline = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(pause)
