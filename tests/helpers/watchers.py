"""Watchers of running cells that record events or act on them."""

from __future__ import annotations

from collections.abc import Callable

from harness.launch.launcher import Snapshot
from harness.matrix import Cell


class Watcher:
    def __init__(self, tick: Callable[[list[Cell]], None] = lambda running: None) -> None:
        self.act, self.heard = tick, list[Cell]()

    def starting(self, running: list[Cell], waiting: int) -> None: ...

    def tick(self, running: list[Snapshot], waiting: int) -> None:
        self.act([snapshot.cell for snapshot in running])

    def elsewhere(self, cell: Cell, owner: str) -> None: ...

    def ended(self, cell: Cell, reason: str | None) -> None:
        self.heard.append(cell)
