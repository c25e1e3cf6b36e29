"""Watchers of running cells that record events or act on them."""

from __future__ import annotations

from collections.abc import Callable

from harness.launch import launcher
from harness.launch.launcher import Snapshot
from harness.matrix import Cell


class Watcher(launcher.Watcher):
    def __init__(self, tick: Callable[[list[Cell]], None] = lambda running: None) -> None:
        self.act, self.heard = tick, list[Cell]()

    def tick(self, running: list[Snapshot], waiting: int) -> None:
        self.act([snapshot.cell for snapshot in running])

    def ended(self, cell: Cell, reason: str | None) -> None:
        self.heard.append(cell)
