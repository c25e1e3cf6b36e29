"""Feeds MLflow beside a run: whatever the store does, the run waits for nothing but the end of its budget."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from harness.base.errors import Damaged, UserError
from harness.tracking import sync

PAUSE = 60.0  # seconds after which a store that failed is asked again


class Feeder:
    """Brings cells to MLflow, one after another, in a thread that ends with the process. A cell that is asked for again
    while it waits is brought once, as it is by then."""

    def __init__(self, uri: str, say: Callable[[str], None]) -> None:
        self.uri, self.say = uri, say
        self.waiting: dict[Path, None] = {}
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self.told = self.closed = False

    def feed(self, folder: Path) -> None:
        with self.changed:
            self.waiting[folder] = None
            self.changed.notify()
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, name="MLflow", daemon=True)
            self.thread.start()

    def close(self) -> None:
        """Brings no more cells than the one at hand; what waits is left to the sync at the end."""
        with self.changed:
            self.closed = True
            self.changed.notify()

    def work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting or self.closed)
                if self.closed:
                    return
                folder = next(iter(self.waiting))
                del self.waiting[folder]
            self.bring(folder)

    def bring(self, folder: Path) -> None:
        try:
            sync.sync(folder, self.uri)
        except Damaged:  # of this cell alone, which has failed by that
            return
        except UserError as error:
            if not self.told and not self.closed:
                self.say(f"MLflow is not fed: {error}. The records are kept; `entrobench sync` feeds it later.")
            self.told = True
            with self.changed:
                self.waiting[folder] = None
                self.changed.wait_for(lambda: self.closed, PAUSE)
