"""Python processes with the same import path as this one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence


def python_command(imports: str, code: str, *arguments: str) -> list[str]:
    """Return the command of a process that runs an import statement, and then code, with the import path of this one.

    Otherwise Python would put the current directory first, where a user's statistics.py hides that of Python.
    """
    lines = [
        f"import sys; sys.path[:] = {sys.path!r}",
        "from harness.base.garbage import never_searched",
        f"with never_searched(): {imports}",
        code,
    ]
    return [sys.executable, "-P", "-c", "\n".join(lines), *arguments]


def wait_for_all(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all processes, or until one fails; then kill the others. Return the failed one's exit code, or 0."""
    codes: list[int | None] = [None]  # None: it still runs
    while None in codes and not any(codes):
        time.sleep(0.1)
        codes = [process.poll() for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    failures = [code for code in codes if code]
    return failures[0] if failures else 0
