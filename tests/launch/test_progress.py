"""Progress of a running matrix: a table that is redrawn in a terminal, occasional lines elsewhere."""

from __future__ import annotations

import io
import multiprocessing
import re
import shutil
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cells import write_cell
from known import known
from patience import HANG, wait_until
from rich.console import Console

from harness import config, matrix
from harness.cells import lease, state
from harness.cells.state import STOP_MARK, State
from harness.launch import launcher, progress
from harness.launch.launcher import RECENT, Snapshot
from harness.launch.local import Local
from harness.launch.progress import QUIET_SECONDS, LiveView
from harness.matrix import Cell
from harness.table.board import opened_experiment
from harness.tracking.feeder import Feeder
from harness.tracking.sync import MLFLOW_RUN


class Terminal(io.StringIO):
    """A file that knows what a terminal shows of all that was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines, self.row, self.column = [""], 0, 0

    def write(self, written: str) -> int:
        for control, up, text in re.findall(r"(\x1b\[(\d*)[A-Za-z]|\x1b\[\?25[hl])|([^\x1b])", written):
            if control.endswith("A"):
                self.row -= int(up or 1)
            elif control.endswith("2K"):
                self.lines[self.row] = ""
            elif text == "\r":
                self.column = 0
            elif text == "\n":
                self.row, self.column = self.row + 1, 0
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif text:
                line = self.lines[self.row]
                self.lines[self.row] = line[: self.column].ljust(self.column) + text + line[self.column + 1 :]
                self.column += 1
            else:
                assert control.endswith("m") or control in ("\x1b[?25h", "\x1b[?25l"), f"no terminal knows {control!r}"
        return super().write(written)

    def shown(self) -> list[str]:
        return [" ".join(line.split()) for line in self.lines if line.strip()]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were brought to MLflow, in their order."""
    folders: list[str] = []
    monkeypatch.setattr(Feeder, "feed", lambda self, folder: folders.append(folder.name))
    return folders


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    """Of two methods and two seeds, with 4 steps each."""
    overrides = ["methods=[grpo,clip_b]", "seeds=[0,1]", "train.steps=4", f"results={tmp_path}"]
    return matrix.cells(config.load_config("demo", overrides))


@pytest.fixture
def alive() -> Iterator[ExitStack]:
    """Hold the locks of cells, as their processes do."""
    with ExitStack() as locks:
        yield locks


def write(cell: Cell, state: str, last: int, *, attempt: str = "only", durable: int = -1, **fields: Any) -> None:
    """Write a cell with the steps 0 to `last`, of which the first is an evaluation alone."""
    steps = [{"eval/countdown/avg": 0.125}]
    steps += [{"entropy/mean": 2.0 - step / 4, "reward/mean": step / 10} for step in range(1, last + 1)]
    if state == "done":
        steps[-1] |= {"eval/countdown/avg": 0.25}
    fields = {"device": "", "durable_step": durable, **fields}
    write_cell(cell.folder, cell.spec, state, steps, made={"attempt": attempt}, **fields)


def start(cell: Cell, alive: ExitStack, last: int = 0, **fields: Any) -> None:
    write(cell, "running", last, **fields)
    alive.enter_context(lease.hold(cell.folder))


def in_a_terminal(cells: list[Cell], monkeypatch: pytest.MonkeyPatch, width: int = 100) -> tuple[LiveView, Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    console = Console(file=terminal, force_terminal=True, width=width, height=30, legacy_windows=False)
    todo = [cell for cell in cells if cell.progress().state != "done"]
    return LiveView(console, cells, todo, "sqlite:///nowhere.db"), terminal


def seen(view: LiveView, terminal: Terminal) -> list[str]:
    known(view.live).refresh()
    return terminal.shown()


def timed(log: io.StringIO) -> list[str]:
    """Return the lines of a log with TIME in place of each time of day."""
    return re.sub(r"(?m)^[012]\d:[0-5]\d:[0-5]\d ", "TIME ", log.getvalue()).splitlines()


def snapshots(*cells: Cell) -> list[Snapshot]:
    return [Snapshot.take(cell) for cell in cells]


def test_summary_of_one_cell(cells: list[Cell]) -> None:
    view = LiveView(Console(), cells[:1], cells[:1], "sqlite:///nowhere.db")
    assert view.summary([], 1) == "0 of 1 cell done, 0 running, 1 waiting; time left not known yet"


def test_summary_with_a_cell_that_was_stopped_before(cells: list[Cell]) -> None:
    write(cells[0], "done", 4)
    cells[1].folder.mkdir(parents=True)
    (cells[1].folder / STOP_MARK).touch()
    view = LiveView(Console(), cells, cells[2:], "sqlite:///nowhere.db")
    assert view.summary([], 2).startswith("1 of 4 cells done, 1 stopped, 0 running, 2 waiting")


@pytest.mark.usefixtures("fed")
def test_live_view_of_cells(cells: list[Cell], alive: ExitStack, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    before, one, other, last = cells
    write(before, "done", 4)
    view, terminal = in_a_terminal(cells, monkeypatch)
    with view:
        assert seen(view, terminal) == ["0 min 00 s: 1 of 4 cells done, 0 running, 3 waiting; time left not known yet"]
        view.starting([one], 2)
        clock.now += 2
        assert seen(view, terminal) == [
            "0 min 02 s: 1 of 4 cells done, 1 running, 2 waiting; time left not known yet",
            "cell step entropy reward now",
            "clip_b seed 0 0/4 starting its process",
        ], "the clock goes on while the launcher waits"
        start(one, alive, reason="12 of 90 problems are neither too hard nor too easy")
        start(other, alive)
        view.tick(snapshots(one, other), 1)
        assert seen(view, terminal)[1:] == [
            "cell step entropy reward now",
            "clip_b seed 0 0/4 12 of 90 problems are neither too hard nor too easy",
            "grpo seed 1 0/4 loading the model",
        ]
        write(one, "running", 0, device="cpu")
        write(other, "running", 1)
        view.tick(snapshots(one, other), 1)
        assert seen(view, terminal) == [
            "0 min 02 s: 1 of 4 cells done, 2 running, 1 waiting; time left not known yet",
            "cell step entropy reward now",
            "clip_b seed 0 0/4 evaluating before training",
            "grpo seed 1 1/4 1.750 ▅ 0.100 ▅",
        ], "the first steps start the clock of the time left"
        clock.now += 40
        write(one, "running", 3)
        view.tick(snapshots(one, other), 1)
        # 3 steps in 40 seconds; of 12 steps 4 are done.
        assert seen(view, terminal) == [
            "0 min 42 s: 1 of 4 cells done, 2 running, 1 waiting; about 1 min 47 s left",
            "cell step entropy reward now",
            "clip_b seed 0 3/4 1.250 █▅▁ 0.300 ▁▅█",
            "grpo seed 1 1/4 1.750 ▅ 0.100 ▅",
        ]
        write(one, "done", 4)
        view.ended(one, None)
        start(last, alive)
        view.tick(snapshots(other, last), 0)
        assert seen(view, terminal) == [
            "done clip_b seed 0: Avg@K 0.250, entropy 1.000",
            "0 min 42 s: 2 of 4 cells done, 2 running, 0 waiting; about 1 min 10 s left",
            "cell step entropy reward now",
            "grpo seed 1 1/4 1.750 ▅ 0.100 ▅",
            "clip_b seed 1 0/4 loading the model",
        ]
        write(other, "failed", 1, reason="its process ended by SIGKILL (out of memory?)")
        view.ended(other, None)
        write(last, "running", 2)
        view.tick(snapshots(last), 0)
        # 6 steps less 1 at the first look, in 40 seconds. Only the last cell goes on, with 2 steps.
        status = seen(view, terminal)[2]
        assert status.endswith("2 of 4 cells done, 1 failed, 1 running, 0 waiting; about 0 min 13 s left")
        write(last, "done", 4)
        view.ended(last, None)
    assert terminal.shown() == [
        "done clip_b seed 0: Avg@K 0.250, entropy 1.000",
        "failed grpo seed 1: its process ended by SIGKILL (out of memory?)",
        "done clip_b seed 1: Avg@K 0.250, entropy 1.000",
    ]
    assert terminal.getvalue().rfind("\x1b[?25h") > terminal.getvalue().rfind("\x1b[?25l"), "the cursor is back"


def test_live_view_of_a_cell_that_restarts(
    cells: list[Cell], alive: ExitStack, clock: Clock, fed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    anew, failed, *others = cells
    for cell in others:
        write(cell, "done", 4)
    write(failed, "failed", 3, reason="its process ended by SIGKILL", durable=2)
    view, terminal = in_a_terminal(cells, monkeypatch)
    with view:
        view.starting([anew, failed], 0)
        assert seen(view, terminal) == [
            "0 min 00 s: 2 of 4 cells done, 2 running, 0 waiting; time left not known yet",
            "cell step entropy reward now",
            "grpo seed 0 0/4 starting its process",
            "clip_b seed 0 2/4 1.250 █▅▁ 0.300 ▁▅█ starting its process",
        ], "steps that are run again are none"
        view.tick(snapshots(anew, failed), 0)
        fed.clear()
        start(anew, alive, attempt="second")
        start(failed, alive, 2)
        fed_by = []
        for steps, durable in ((1, -1), (2, 2), (3, 2), (4, 4)):
            clock.now += 10
            write(anew, "running", steps, durable=durable, attempt="second")
            write(failed, "running", 2, durable=2)
            view.tick(snapshots(anew, failed), 0)
            fed_by.append(fed.count(anew.folder.name))
        assert fed_by == [1, 2, 3, 4]
        assert fed.count(failed.folder.name) == 1, "its third step was taken back"
        # 3 steps in 30 seconds, of 4 and of the last 2 of the other.
        assert seen(view, terminal)[0].endswith("2 of 4 cells done, 2 running, 0 waiting; about 0 min 20 s left")
        shutil.rmtree(anew.folder)
        view.ended(anew, None)
    assert terminal.shown() == ["failed grpo seed 0: its folder holds no result"]


@pytest.mark.slow
def test_live_view_of_an_interrupted_run(cells: list[Cell], mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LAST_SECONDS", HANG)
    cell, view = cells[0], LiveView(Console(file=io.StringIO()), cells, cells, mlflow_uri)
    with lease.hold(cell.folder):
        write(cell, "running", 1)
        view.tick(snapshots(cell), 3)
        wait_until((cell.folder / MLFLOW_RUN).exists)
    with pytest.raises(KeyboardInterrupt), view:
        raise KeyboardInterrupt
    with opened_experiment("demo", mlflow_uri) as experiment:
        assert [run.tags["status"] for run in experiment.runs] == ["stale"]


def hold(cell: Cell, held: Event, known: Event) -> None:
    """Work on a cell as another run does, and end it when this one knows of that."""
    with lease.hold(cell.folder):
        write_cell(cell.folder, cell.spec, "running", made=None)
        held.set()
        known.wait(HANG)
        write(cell, "done", 4)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.usefixtures("fed")
def test_run_cells_names_the_process_it_waits_for(cells: list[Cell]) -> None:
    """Two real processes meet: one holds the lease, and the one that the runner starts finds it taken."""
    cell, context, text = cells[0], multiprocessing.get_context("fork"), io.StringIO()
    held, known = context.Event(), context.Event()

    class Announcing(LiveView):
        def elsewhere(self, cell: Cell, owner: str) -> None:
            super().elsewhere(cell, owner)
            known.set()

    holder = context.Process(target=hold, args=(cell, held, known))
    holder.start()
    assert held.wait(HANG)
    try:
        with Announcing(Console(file=text, width=1000), cells[:1], cells[:1], "sqlite:///nowhere.db") as view:
            launcher.run_cells(cells[:1], Local(1, 1), view)
    finally:
        known.set()
        holder.join(HANG)
    owner = f"process {holder.pid} on {socket.gethostname()}"
    lines = timed(text)
    waiting = [line for line in lines if "waiting for" in line]
    assert waiting == [f"{cell.label}: waiting for {owner}, which is running it"]
    assert lines[-1] == f"TIME done    {cell.label}: Avg@K 0.250, entropy 1.000"
    assert f"another process works on this cell: {owner}\n" in (cell.folder / "log.txt").read_text()


@pytest.mark.usefixtures("fed")
def test_sparkline(cells: list[Cell], alive: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    view, terminal = in_a_terminal(cells, monkeypatch)
    with view:
        start(cells[0], alive, RECENT + 5)
        view.tick(snapshots(*cells[:1]), 3)
        row = seen(view, terminal)[2].split()
    # In 10 steps of one size: 0, 7/9, 14/9 ... of the way, rounded, up to 7.
    assert row[-1] == "▁▂▃▃▄▅▆▆▇█"
    assert row[-3] == "█▇▆▆▅▄▃▃▂▁"


@pytest.mark.usefixtures("fed", "clock")
@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_live_view_by_width(width: int, cells: list[Cell], alive: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    view, terminal = in_a_terminal(cells, monkeypatch, width)
    with view:
        start(cells[0], alive, 12, reason="a reason \x1b[2J that is longer than any terminal is wide, " * 3)
        start(cells[1], alive, 12)
        view.tick(snapshots(*cells[:2]), 2)
        lines = view.console.render_lines(known(view.table))
        texts = ["".join(segment.text for segment in line) for line in lines]
    assert len(texts) == 3, "a cell is a line"
    assert all(len(text) <= width for text in texts)
    assert "\x1b[2J" not in terminal.getvalue()
    assert texts[1].startswith("grpo seed 0")
    assert "12/4" in texts[1]


def test_tick_feeds_at_a_pace(
    cells: list[Cell], alive: ExitStack, clock: Clock, fed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, *_ = cells
    view, _ = in_a_terminal(cells, monkeypatch)
    start(one, alive)
    start(other, alive)
    counts = []
    for steps, seconds in ((1, 0.0), (2, progress.PACE - 1), (3, 1.0), (3, progress.PACE), (4, 0.0)):
        clock.now += seconds
        write(one, "running", steps)
        view.tick(snapshots(one), 2)
        counts.append(len(fed))
    write(one, "done", 4, durable=4)
    view.ended(one, None)
    assert counts == [1, 1, 2, 2, 3]
    assert fed == [one.folder.name] * 4


@pytest.mark.usefixtures("fed")
def test_live_view_without_a_terminal(cells: list[Cell], alive: ExitStack, clock: Clock) -> None:
    one, other, *_ = cells
    out = io.StringIO()
    view = LiveView(Console(file=out, width=200), cells, cells, "sqlite:///nowhere.db")
    assert view.live is None
    with view:
        view.starting([one], 3)
        start(one, alive, reason="making the base model")
        start(other, alive)
        view.tick(snapshots(one, other), 2)
        clock.now += QUIET_SECONDS
        view.tick(snapshots(one, other), 2)
        assert out.getvalue() == "starting the processes\n"
        clock.now += 1
        view.tick(snapshots(one, other), 2)
        clock.now += 1
        view.tick(snapshots(one, other), 2)
        write(other, "failed", 0, reason="it took too long")
        view.ended(other, None)
    assert timed(out) == [
        "starting the processes",
        "TIME 0 of 4 cells done, 2 running, 2 waiting; time left not known yet",
        "grpo seed 0: making the base model",
        "TIME failed  clip_b seed 0: it took too long",
    ]


class BusyLauncher(nullcontext[None]):
    """Starts processes that never end."""

    def start(self, waiting: Sequence[Cell]) -> list[Any]:
        never = {"waits": lambda: False, "code": lambda: None, "reason": lambda: "", "kill": lambda: None}
        return [SimpleNamespace(cell=cell, **never) for cell in waiting]


@pytest.mark.usefixtures("fed")
def test_tick_reads_each_record_once(cells: list[Cell], alive: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    for cell in cells:
        start(cell, alive, 3)
        write(cell, "running", 3, durable=2)
    view, _ = in_a_terminal(cells, monkeypatch)
    reads: Counter[Path] = Counter()
    ticks: list[Counter[Path]] = []

    def count_reads(of: Any, function: str, name: str) -> None:
        read = getattr(of, function)

        def counted(folder: Path, *more: Any) -> Any:
            reads[folder / name] += 1
            return read(folder, *more)

        monkeypatch.setattr(of, function, counted)

    count_reads(State, "read", "state.json")
    count_reads(state, "last_lines", "metrics.jsonl")
    count_reads(lease, "holder", lease.NAME)
    tick = view.tick

    def count_a_tick(running: list[Snapshot], waiting: int) -> None:
        tick(running, waiting)
        ticks.append(Counter(reads))
        reads.clear()
        if len(ticks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(view, "tick", count_a_tick)
    with view, pytest.raises(KeyboardInterrupt):
        launcher.run_cells(cells, BusyLauncher(), view, poll=0.0)
    records = [cell.folder / name for cell in cells for name in ("state.json", "metrics.jsonl", lease.NAME)]
    # Before the first tick the state is also read for the process that starts, and for the first cell of the view.
    assert ticks[1:] == [Counter(records)] * 2
