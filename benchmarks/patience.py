"""Limits of time for a machine that may be used for something else, too."""

from __future__ import annotations

import os

HANG = 900.0  # seconds after which something hangs: so long that no other work on the machine explains it


def patient(seconds: float) -> float:
    """Stretch a limit that holds on an idle machine by the number of processes that want each core."""
    wanting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * max(1.0, wanting)
