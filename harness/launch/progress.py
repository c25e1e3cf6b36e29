"""Shows a person how a matrix runs, and feeds MLflow along the way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.base.errors import Damaged
from harness.cells.log import last_lines
from harness.cells.provenance import Made
from harness.cells.state import OUTDATED, Progress, State
from harness.matrix import Cell
from harness.terminal import layout
from harness.terminal.units import duration
from harness.tracking.feeder import Feeder

QUIET_SECONDS = 30  # between two lines where there is no terminal to redraw
BARS = "▁▂▃▄▅▆▇█"
RECENT = 10  # steps of a sparkline
NUMBERS = {"entropy": "entropy/mean", "reward": "reward/mean"}  # that are shown, by their columns
STARTING = ("planned", "stale", "failed", OUTDATED)  # as a cell was before its process writes that it runs


def sparkline(values: Sequence[float]) -> str:
    """Returns a bar for each value, between the lowest and the highest of them; a blank for what is no number."""
    known = [value for value in values if isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)

    def bar(value: float) -> str:
        if not isfinite(value):
            return " "
        share = (value - low) / (high - low) if high > low else 0.5
        return BARS[round(share * (len(BARS) - 1))]

    return "".join(map(bar, values))


def phase(cell: Cell, now: Progress) -> str:
    """Returns what a cell is busy with where its numbers do not say it."""
    if now.state in STARTING:
        return "starting its process"
    if now.reason is not None or now.step > 0:
        return now.reason or ""
    return "evaluating before training" if State.known(cell.folder).device else "loading the model"


def reached(cell: Cell, now: Progress) -> int:
    """Returns the step that a cell has reached: before its process runs, that with which it will go on."""
    if now.state == OUTDATED:
        return 0
    return max(State.known(cell.folder).durable_step, 0) if now.state in STARTING else now.step


def metrics_of(cell: Cell) -> list[dict[str, float]]:
    """Returns the metrics of the last steps; none where one of these lines is damaged."""
    try:
        return [line["metrics"] for line in last_lines(cell.folder, RECENT)]
    except Damaged:
        return []


@contextmanager
def clock(console: Console, what: str) -> Iterator[None]:
    """Shows on a terminal what takes its time, and for how long it does by now."""
    began = time.monotonic()

    class Waiting:
        def __rich__(self) -> Text:
            return Text(f"{what}: {duration(time.monotonic() - began)}", style="dim", no_wrap=True, overflow="ellipsis")

    if not console.is_terminal:
        yield
        return
    with Live(Waiting(), console=console, refresh_per_second=2, transient=True):
        yield


class LiveView:
    """Cells done, and for each running cell its step, entropy and reward; lines instead where there is no terminal."""

    def __init__(self, console: Console, cells: list[Cell], todo: list[Cell], uri: str) -> None:
        self.console, self.todo = console, todo
        self.feeder = Feeder(uri, partial(console.print, style="yellow"))
        self.total, self.done, self.failed = len(cells), len(cells) - len(todo), 0
        self.steps_before = {cell.id: reached(cell, cell.progress()) for cell in todo}
        self.steps_todo = sum(cell.config.train.steps - self.steps_before[cell.id] for cell in todo)
        self.steps_ended = 0
        self.last_line = time.monotonic()
        self.fed: dict[str, tuple[str | None, int]] = {}  # the attempt and its step, by cell
        self.started = False
        self.first: tuple[int, float] | None = None  # the clock of the time left begins with the first steps
        self.began, self.said = time.monotonic(), ""
        self.table: Table | None = None
        self.look([], len(todo))
        self.live = Live(self, console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __rich__(self) -> Group:
        """Returns what is drawn some times a second, whatever the launcher waits for meanwhile."""
        ran = f"{duration(time.monotonic() - self.began)}: {self.said}"
        return Group(Text(ran), *([self.table] if self.table else []))

    def __enter__(self) -> LiveView:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.feeder.close()
        if self.live:
            self.live.stop()

    def tick(self, running: list[Cell], waiting: int) -> None:
        for cell in running:
            self.feed(cell)
        if self.live:
            self.look(running, waiting)
        elif time.monotonic() - self.last_line > QUIET_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(self.headline(running, waiting))
            for cell in running:
                if cell.progress().reason:
                    self.console.print(f"{cell.label}: {cell.progress().reason}")

    def starting(self, running: list[Cell], waiting: int) -> None:
        if self.live:
            self.look(running, waiting)
        elif not self.started:
            self.console.print("starting the processes")
        self.started = True

    def elsewhere(self, cell: Cell, owner: str) -> None:
        self.console.print(f"{cell.label}: waits for {owner}, which works on it", style="yellow")

    def ended(self, cell: Cell, reason: str | None) -> None:
        self.feed(cell, last=True)
        progress = cell.progress()
        self.done += progress.state == "done"
        self.failed += progress.state != "done"
        self.steps_ended += progress.step - self.steps_before[cell.id]
        self.steps_todo -= cell.config.train.steps - progress.step  # of a failed cell these are not run
        if progress.state == "done":
            head = next((f"{v:.3f}" for k, v in progress.metrics.items() if k.endswith("/avg")), "?")
            entropy = progress.metrics.get("entropy/mean", float("nan"))
            told = f", {progress.reason}" if progress.reason else ""
            line = f"{cell.label}: Avg@K {head}, entropy {entropy:.3f}{told}"
            self.console.print(Text.assemble(("done    ", "green"), line))
        else:
            self.console.print(Text.assemble(("failed  ", "red"), f"{cell.label}: {progress.reason or reason}"))

    def feed(self, cell: Cell, *, last: bool = False) -> None:
        """Has MLflow brought up to the last checkpoint."""
        try:
            made = Made.read(cell.folder)
            here = made.attempt if made else None, State.read(cell.folder).durable_step
        except Damaged:  # which the state of the cell tells
            return
        if last or (here[1] >= 0 and here != self.fed.get(cell.id)):
            self.fed[cell.id] = here
            self.feeder.feed(cell.folder)

    def headline(self, running: list[Cell], waiting: int) -> str:
        steps = self.steps_ended + sum(reached(cell, cell.progress()) - self.steps_before[cell.id] for cell in running)
        now = time.monotonic()
        if steps and self.first is None:
            self.first = steps, now
        left = "time left unknown yet"
        if self.first and steps > self.first[0]:
            seconds_a_step = (now - self.first[1]) / (steps - self.first[0])
            left = f"about {duration(seconds_a_step * (self.steps_todo - steps))} left"
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} of {self.total} cells done{failed}, {len(running)} running, {waiting} waiting; {left}"

    def look(self, running: list[Cell], waiting: int) -> None:
        """Looks at the cells, for the picture of the next moments."""
        self.said = self.headline(running, waiting)
        header = ["cell", "step", "entropy", "entropies", "reward", "rewards", "now"]
        lines = [header, *map(self.line, running)]
        goes = [["rewards"], ["entropies"], ["now"], list(NUMBERS)]
        width = layout.width_of(self.console)
        kept = layout.fitting(lines, width, goes, between=2, around=0, folding=["now"]) or [0, 1]
        table = Table(box=None, header_style="dim", pad_edge=False)
        for name in (header[i] for i in kept):
            title = "" if name in ("entropies", "rewards") else name  # sparklines stand behind their number
            right = name in ("step", *NUMBERS)
            # The text at the end gives way where there is no room; each text stays on one line.
            table.add_column(title, justify="right" if right else "left", no_wrap=name != "now")
        for line in lines[1:]:
            table.add_row(*(Text(line[i], no_wrap=True, overflow="ellipsis") for i in kept))
        self.table = table if running else None

    def line(self, cell: Cell) -> list[str]:
        """Returns a cell's row of the picture."""
        now = cell.progress()
        anew = now.state == OUTDATED  # its numbers are those of an earlier attempt
        recent = [] if anew else metrics_of(cell)
        texts = []
        for key in NUMBERS.values():
            values = [metrics[key] for metrics in recent if key in metrics]
            texts += [f"{now.metrics[key]:.3f}" if key in now.metrics and not anew else "", sparkline(values)]
        row = [cell.label, f"{reached(cell, now)}/{cell.config.train.steps}", *texts, phase(cell, now)]
        return [layout.visible(text) for text in row]
