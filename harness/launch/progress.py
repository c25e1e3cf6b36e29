"""Shows a person how a matrix runs, and feeds MLflow along the way."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.base.errors import UserError
from harness.base.units import duration
from harness.matrix import Cell
from harness.record import sync
from harness.record.state import State

QUIET_SECONDS = 30  # between two lines where there is no terminal to redraw


class LiveView:
    """Cells done, and for each running cell its step, entropy and reward; lines instead where there is no terminal."""

    def __init__(self, console: Console, cells: list[Cell], todo: list[Cell], uri: str) -> None:
        self.console, self.todo, self.uri = console, todo, uri
        self.total, self.done, self.failed = len(cells), len(cells) - len(todo), 0
        self.steps_before = {cell.key: cell.progress().step for cell in todo}
        self.steps_todo = sum(cell.config.train.steps - self.steps_before[cell.key] for cell in todo)
        self.steps_ended = 0
        self.last_line = time.monotonic()
        self.fed: dict[str, int] = {}
        self.store_away = False
        self.first: tuple[int, float] | None = None  # the clock of the time left begins with the first steps
        self.live = (
            Live(self.picture([], len(todo)), console=console, refresh_per_second=4, transient=True)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> LiveView:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def tick(self, running: list[Cell], waiting: int) -> None:
        for cell in running:
            self.feed(cell)
        if self.live:
            self.live.update(self.picture(running, waiting))
        elif time.monotonic() - self.last_line > QUIET_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(self.headline(running, waiting))
            for cell in running:
                if cell.progress().reason:
                    self.console.print(f"{cell.label}: {cell.progress().reason}")

    def ended(self, cell: Cell) -> None:
        self.feed(cell, last=True)
        progress = cell.progress()
        self.done += progress.state == "done"
        self.failed += progress.state != "done"
        self.steps_ended += progress.step - self.steps_before[cell.key]
        self.steps_todo -= cell.config.train.steps - progress.step  # of a failed cell these are not run
        if progress.state == "done":
            head = next((f"{v:.3f}" for k, v in progress.metrics.items() if k.endswith("/avg")), "?")
            entropy = progress.metrics.get("entropy/mean", float("nan"))
            line = f"{cell.label}: Avg@K {head}, entropy {entropy:.3f}"
            self.console.print(Text.assemble(("done    ", "green"), line))
        else:
            self.console.print(Text.assemble(("failed  ", "red"), f"{cell.label}: {progress.reason}"))

    def feed(self, cell: Cell, *, last: bool = False) -> None:
        """Bring MLflow up to the last checkpoint; that it is away costs one warning and nothing else."""
        if self.store_away:
            return
        step = State.read(cell.folder).durable_step
        if not last and step <= self.fed.get(cell.key, -1):
            return
        self.fed[cell.key] = step
        try:
            sync.sync(cell.folder, self.uri)
        except UserError as error:
            self.store_away = True
            self.console.print(
                f"MLflow is not fed: {error}. The records are kept; `entrobench sync` feeds it later.", style="yellow"
            )

    def headline(self, running: list[Cell], waiting: int) -> str:
        steps = self.steps_ended + sum(cell.progress().step - self.steps_before[cell.key] for cell in running)
        now = time.monotonic()
        if steps and self.first is None:
            self.first = steps, now
        left = "time left unknown yet"
        if self.first and steps > self.first[0]:
            seconds_a_step = (now - self.first[1]) / (steps - self.first[0])
            left = f"about {duration(seconds_a_step * (self.steps_todo - steps))} left"
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} of {self.total} cells done{failed}, {len(running)} running, {waiting} waiting; {left}"

    def picture(self, running: list[Cell], waiting: int) -> Group:
        table = Table(box=None, header_style="dim", pad_edge=False)
        for column in ("cell", "step", "entropy", "reward", ""):
            table.add_column(column, justify="right" if column in ("step", "entropy", "reward") else "left")
        for cell in running:
            progress = cell.progress()
            numbers = [
                f"{progress.metrics[key]:.3f}" if key in progress.metrics else ""
                for key in ("entropy/mean", "reward/mean")
            ]
            table.add_row(cell.label, f"{progress.step}/{cell.config.train.steps}", *numbers, progress.reason or "")
        return Group(Text(self.headline(running, waiting)), table)
