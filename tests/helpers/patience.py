"""Time limits for a machine that may be busy with other work."""

from __future__ import annotations

import os

HANG = 900.0  # seconds after which a process counts as hung; no other work on the machine delays it by that much


def patient(seconds: float) -> float:
    """Return a limit for an idle machine, multiplied by the number of processes per core."""
    processes_per_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * max(1.0, processes_per_core)
