"""Work with a time limit after which this process continues without it."""

from __future__ import annotations

import threading
from collections.abc import Callable


def finished_within(seconds: float, work: Callable[[], object]) -> bool:
    """Run work that may never end, and return whether it ended in time; raise its error."""
    errors: list[Exception] = []

    def work_and_keep_error() -> None:
        try:
            work()
        except Exception as error:  # raised below, in the thread of the caller
            errors.append(error)

    # A daemon thread: if the work never ends, this process can still exit.
    thread = threading.Thread(target=work_and_keep_error, daemon=True)
    thread.start()
    thread.join(seconds)
    for error in errors:
        raise error
    return not thread.is_alive()
