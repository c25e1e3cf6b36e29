"""Feed MLflow in a thread during a run, so that a slow or unreachable store does not delay the cells."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from harness.base.errors import Damaged, UserError
from harness.tracking import sync

PAUSE = 60.0  # seconds between attempts at a store that failed


class Feeder:
    """A queue of cells and a thread that feeds them to MLflow one after another.

    A cell that is queued twice is sent once, in its latest state. The thread is a daemon: a call to MLflow that hangs
    does not keep the process from ending.
    """

    def __init__(self, uri: str, say: Callable[[str], None]) -> None:
        self.uri, self.say = uri, say
        self.queue: dict[Path, None] = {}  # a dict, since it keeps the order and holds each folder once
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self.reported = self.closed = False

    def feed(self, folder: Path) -> None:
        """Queue a cell; the first one starts the thread."""
        with self.changed:
            self.queue[folder] = None
            self.changed.notify()
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, name="MLflow", daemon=True)
            self.thread.start()

    def close(self, seconds: float = 0.0) -> None:
        """Stop after the cell that is being sent; given seconds, wait that long for the queued ones, which follow."""
        with self.changed:
            self.closed = True
            if not seconds:
                self.queue.clear()
            self.changed.notify()
        if self.thread is not None:
            self.thread.join(seconds)

    def work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.queue or self.closed)
                if not self.queue:
                    return
                folder = next(iter(self.queue))
                del self.queue[folder]
            self.feed_now(folder)

    def feed_now(self, folder: Path) -> None:
        """Feed a cell; if the store fails, queue it again and pause. Only the first failure is reported."""
        try:
            sync.sync(folder, self.uri)
        except Damaged:  # a damaged record fails this cell, which the run reports; the store works
            return
        except (UserError, OSError) as error:  # an OSError of the records themselves, as on a full disk
            if not self.reported and not self.closed:
                self.say(f"MLflow is not fed: {error}. The records are kept; `entrobench sync` feeds it later.")
            self.reported = True
            with self.changed:
                if self.closed:
                    self.queue.clear()
                    return
                self.queue[folder] = None
                self.changed.wait_for(lambda: self.closed, PAUSE)
