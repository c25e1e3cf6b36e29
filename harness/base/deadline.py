"""Work with a limit of time, of which this process goes on whatever becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable


def finished_within(seconds: float, work: Callable[[], None]) -> bool:
    """Run work that may never end, and return whether it ended in time; its error is raised here."""
    errors: list[Exception] = []

    def tried() -> None:
        try:
            work()
        except Exception as error:  # which the caller is to see
            errors.append(error)

    thread = threading.Thread(target=tried, daemon=True)
    thread.start()
    thread.join(seconds)
    for error in errors:
        raise error
    return not thread.is_alive()
