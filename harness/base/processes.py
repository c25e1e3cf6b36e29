"""Python processes that import what this one imports, whatever lies in the folder where they start."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence


def python_command(code: str, *arguments: str) -> list[str]:
    """Returns the command of a process that runs the code with the import path of this one, in the same order.

    By itself, Python would put the current folder or PYTHONPATH first, where a user's statistics.py hides Python's.
    """
    return [sys.executable, "-P", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}", *arguments]


def wait_for_all(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Waits for all of them, or until one fails, which ends the others; returns its exit code, or 0."""
    codes: list[int | None] = [None]
    while None in codes and not any(codes):
        time.sleep(0.1)
        codes = [process.poll() for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    return next(filter(None, codes), 0)
