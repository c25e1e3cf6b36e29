"""Python processes that import what this one imports, whatever lies in the folder where they start."""

from __future__ import annotations

import sys


def python(code: str, *arguments: str) -> list[str]:
    """Returns the command of a process that runs the code with the import path of this one, in the same order.

    By itself, Python would put the current folder or PYTHONPATH first, where a user's statistics.py hides Python's.
    """
    return [sys.executable, "-P", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}", *arguments]
