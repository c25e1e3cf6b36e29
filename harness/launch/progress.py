"""The live view of a running matrix, which also feeds MLflow."""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial

from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.base import terminal
from harness.base.units import duration, plural, sparkline
from harness.cells.state import STOPPED, State
from harness.launch.launcher import Snapshot, Watcher
from harness.matrix import Cell
from harness.tracking.feeder import Feeder

# Between two progress lines if the output is not a terminal: often enough to see progress, rare enough for a log.
QUIET_SECONDS = 30
PACE = 5.0  # between two times that MLflow is fed with a running cell: it takes a core from quick cells
LAST_SECONDS = 5.0  # for MLflow to learn that the cells of an interrupted run have no process
NUMBERS = {"entropy": "entropy/mean", "reward": "reward/mean"}  # the metrics that are shown, by column


def time_of_day() -> str:
    """Return the time of day as the beginning of a line in a log."""
    return f"{datetime.now():%H:%M:%S} "


class LiveView(Watcher):
    """The progress of a matrix: a table that is redrawn on a terminal, occasional lines elsewhere."""

    def __init__(self, console: Console, cells: list[Cell], todo: list[Cell], uri: str) -> None:
        self.console, self.todo = console, todo
        self.feeder = Feeder(uri, partial(console.print, style="yellow"))
        chosen = {cell.id for cell in todo}
        self.stopped = sum(cell.id not in chosen and cell.progress().state == STOPPED for cell in cells)
        self.total, self.done, self.failed = len(cells), len(cells) - len(todo) - self.stopped, 0
        self.steps_before: dict[str, int] = {}
        self.steps_todo = 0
        for cell in todo:
            self.steps_before[cell.id] = Snapshot.take(cell).step
            self.steps_todo += cell.config.train.steps - self.steps_before[cell.id]
        self.steps_ended = 0
        self.last_line = time.monotonic()
        self.fed: dict[str, tuple[int, float]] = {}  # by cell, its step and when
        # The step count and time at which the first step was seen. The time left is estimated from there on, because
        # loading models and the first evaluation take long and say nothing about the speed of steps.
        self.first: tuple[int, float] | None = None
        self.began = time.monotonic()
        self.headline = self.summary([], len(todo))
        self.table: Table | None = None
        self.live = Live(self, console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __rich__(self) -> Group:
        """Return the picture. Rich draws it in its own thread, so the clock runs while the launcher is waiting."""
        line = f"{duration(time.monotonic() - self.began)}: {self.headline}"
        text = Text(terminal.folded(line, terminal.width_of(self.console)))
        if self.table is None:
            return Group(text)
        return Group(text, self.table)

    def __enter__(self) -> LiveView:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self.live:
            self.live.stop()
        if error is None:
            self.feeder.close()  # a sync of all cells follows
            return
        for cell in self.todo:
            if cell.id in self.fed and State.known(cell.folder).state == "running":
                self.feeder.feed(cell.folder)
        self.feeder.close(LAST_SECONDS)

    def tick(self, running: list[Snapshot], waiting: int) -> None:
        for snapshot in running:
            self.feed(snapshot)
        if self.live:
            self.draw(running, waiting)
        elif time.monotonic() - self.last_line > QUIET_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(time_of_day() + self.summary(running, waiting))
            for snapshot in running:
                if snapshot.progress.reason:
                    self.console.print(f"{snapshot.cell.label}: {snapshot.progress.reason}")

    def starting(self, running: list[Cell], waiting: int) -> None:
        if self.live:
            self.draw([Snapshot.take(cell) for cell in running], waiting)
        else:
            self.console.print("starting the processes")

    def elsewhere(self, cell: Cell, owner: str) -> None:
        self.console.print(f"{cell.label}: waiting for {owner}, which is running it", style="yellow")

    def ended(self, cell: Cell, reason: str | None) -> None:
        snapshot = Snapshot.take(cell)
        self.feed(snapshot, last=True)
        progress = snapshot.progress
        self.steps_ended += progress.step - self.steps_before[cell.id]
        self.steps_todo -= cell.config.train.steps - progress.step  # the steps that a failed cell will not run
        if progress.state == STOPPED:
            self.stopped += 1
            self.print_end("stopped", "yellow", f"{cell.label}: {progress.reason}")
            return
        if progress.state != "done":
            self.failed += 1
            why = progress.reason or reason or "its folder holds no result"  # someone removed its folder, for example
            self.print_end("failed", "red", f"{cell.label}: {why}")
            return
        self.done += 1
        averages = [value for key, value in progress.metrics.items() if key.endswith("/avg")]
        average = f"{averages[0]:.3f}" if averages else "?"
        entropy = progress.metrics.get("entropy/mean", float("nan"))
        line = f"{cell.label}: Avg@K {average}, entropy {entropy:.3f}"
        if progress.reason:
            line += f", {progress.reason}"
        self.print_end("done", "green", line)

    def print_end(self, state: str, style: str, line: str) -> None:
        self.console.print(Text.assemble("" if self.live else time_of_day(), (f"{state:8}", style), line))

    def feed(self, snapshot: Snapshot, *, last: bool = False) -> None:
        """Bring MLflow up to the last step of a cell; one of quick steps is fed every PACE seconds."""
        cell, step = snapshot.cell, snapshot.progress.step
        before, at = self.fed.get(cell.id, (None, -PACE))
        now = time.monotonic()
        if last or (snapshot.progress.metrics and step != before and now - at >= PACE):
            self.fed[cell.id] = step, now
            self.feeder.feed(cell.folder)

    def summary(self, running: list[Snapshot], waiting: int) -> str:
        """Return one line about the whole matrix."""
        steps = self.steps_ended + sum(each.step - self.steps_before[each.cell.id] for each in running)
        now = time.monotonic()
        if steps and self.first is None:
            self.first = steps, now
        left = "time left not known yet"
        if self.first and steps > self.first[0]:
            seconds_per_step = (now - self.first[1]) / (steps - self.first[0])
            left = f"about {duration(seconds_per_step * (self.steps_todo - steps))} left"
        ended = f"{self.done} of {plural(self.total, 'cell')} done"
        if self.failed:
            ended += f", {self.failed} failed"
        if self.stopped:
            ended += f", {self.stopped} stopped"
        return f"{ended}, {len(running)} running, {waiting} waiting; {left}"

    def draw(self, running: list[Snapshot], waiting: int) -> None:
        """Prepare the picture that is shown until the next tick."""
        self.headline = self.summary(running, waiting)
        header = ["cell", "step", "entropy", "entropies", "reward", "rewards", "now"]
        lines = [header, *map(self.row, running)]
        drop_order = [["rewards"], ["entropies"], ["now"], list(NUMBERS)]
        width = terminal.width_of(self.console)
        kept = terminal.fitting(lines, width, drop_order, between=2, around=0, folding=["now"])
        table = Table(box=None, header_style="dim", pad_edge=False)
        for i in kept:
            name = header[i]
            title = "" if name in ("entropies", "rewards") else name  # a sparkline follows its number, without a title
            justify: JustifyMethod = "right" if name in ("step", *NUMBERS) else "left"
            # Only the text in the last column is cut where the terminal is narrow; every text stays on one line.
            table.add_column(title, justify=justify, no_wrap=name != "now")
        for line in lines[1:]:
            table.add_row(*[Text(line[i], no_wrap=True, overflow="ellipsis") for i in kept])
        self.table = table if running else None

    def row(self, snapshot: Snapshot) -> list[str]:
        cell, progress = snapshot.cell, snapshot.progress
        texts = []
        for key in NUMBERS.values():
            values = [metrics[key] for metrics in progress.recent if key in metrics]
            number = f"{progress.metrics[key]:.3f}" if key in progress.metrics else ""
            texts += [number, sparkline(values)]
        row = [cell.label, f"{snapshot.step}/{cell.config.train.steps}", *texts, snapshot.phase]
        return list(map(terminal.visible, row))
