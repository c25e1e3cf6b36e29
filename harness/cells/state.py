"""The state of a cell, written by its process and its launcher, and its progress, read by commands and launchers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.base import files
from harness.base.errors import Damaged
from harness.cells import checksums, lease
from harness.cells.log import FILE as METRICS
from harness.cells.log import last_lines, why_no_signal
from harness.cells.provenance import FILE as MADE
from harness.cells.provenance import Made

FILE = "state.json"
STATES = ("planned", "running", "done", "failed")  # that are written to the file
STOPPED = "stopped"  # by hand: it is not done, it has the mark of `entrobench stop`, and no process works on it
STOP_MARK = "stop"  # a file in the cell's folder; not a field of the state, which only its owner may write
STALE = "stale"  # running by its record, but no process works on it: the next run resumes it
WATCHED = 5  # steps without a signal, of the ones that are read, that are worth a remark while the cell runs


@dataclass(frozen=True)
class State:
    state: str = "planned"
    reason: str | None = None  # of a failure, or a warning; while it starts, its present activity
    durable_step: int = -1  # the last step that no interruption can undo; -1 before the first
    seconds: float = 0.0  # of work, over all processes that worked on the cell
    device: str = ""
    where: list[str] = field(default_factory=list)  # the machine of each rank, and its GPU if it has one
    collapsed: int | None = None  # the step after which it ended early, because of stop.entropy_below
    untrained: bool = False  # done, but no step had a signal; the reason has the cause

    @classmethod
    def read(cls, folder: Path) -> State:
        """Return the state of a cell; one without a record is planned."""
        path = folder / FILE
        try:
            state = files.read_record(cls, path, optional=["untrained"])  # which records of earlier versions lack
        except FileNotFoundError:
            if (folder / METRICS).exists():  # the state is always written before the first step
                raise Damaged(path, "it is missing") from None
            return cls()
        if state.state not in STATES:
            raise Damaged(path, f"its state must be one of {', '.join(STATES)}")
        return state

    @classmethod
    def known(cls, folder: Path) -> State:
        """Return the state of a cell; a cell with a damaged record has failed."""
        try:
            return cls.read(folder)
        except Damaged as damage:
            return cls("failed", str(damage))

    def write(self, folder: Path) -> None:
        assert self.state in STATES
        # A reason may quote text with lone surrogates, which neither UTF-8 nor any store takes.
        reason = self.reason
        if reason is not None:
            reason = reason.encode(errors="backslashreplace").decode()
        files.write_json(folder / FILE, dataclasses.asdict(self) | {"reason": reason})

    @property
    def description(self) -> str | None:
        """The reason with the step of a collapse, as people read it."""
        collapsed = None if self.collapsed is None else f"collapsed at step {self.collapsed}"
        return "; ".join(text for text in (collapsed, self.reason) if text) or None

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed")


def is_stopped(folder: Path) -> bool:
    """Return whether a cell has the mark of `entrobench stop`."""
    return (folder / STOP_MARK).exists()


def change(folder: Path, **changes: Any) -> State:
    """Write some fields of a cell's state, and leave the others as they are."""
    state = dataclasses.replace(State.read(folder), **changes)
    state.write(folder)
    return state


@dataclass(frozen=True)
class Progress:
    """The progress of a cell, as people read it."""

    state: str  # planned | running | done | failed | stale | stopped
    reason: str | None = None
    step: int = 0
    recent: list[dict[str, float]] = field(default_factory=list)  # metrics of the last steps, up to that one
    record: State = field(default_factory=State, compare=False)  # state.json as it was read for this

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of its last step."""
        return self.recent[-1] if self.recent else {}

    @property
    def missing(self) -> bool:
        """Whether `run` has yet to run the cell: it is neither done nor stopped by hand."""
        return self.state not in ("done", STOPPED)

    @classmethod
    def read(cls, folder: Path, recent: int = 1) -> Progress:
        """Return the progress of a cell, with the metrics of this many last steps; one with damaged records failed."""
        record = None
        try:
            record = State.read(folder)
            abandoned = record.state == "running" and lease.holder(folder) is None
            if abandoned:
                record = State.read(folder)  # its process may have ended it between the two looks
            return cls.of_records(folder, record, abandoned, recent)
        except Damaged as damage:
            return cls("failed", str(damage), record=record or State("failed", str(damage)))

    @classmethod
    def of_records(cls, folder: Path, now: State, abandoned: bool, recent: int) -> Progress:
        stopped = now.state != "done" and is_stopped(folder)
        if now.state == "planned":
            if stopped:
                return cls(STOPPED, "stopped by hand before it began", record=now)
            return cls("planned", record=now)
        name = STALE if now.state == "running" and abandoned else now.state
        if stopped and name != "running":
            name = STOPPED
        if name == "done":
            if Made.read(folder) is None:
                raise Damaged(folder / MADE, "it is missing")
            checksums.check_sizes(folder)
        lines = last_lines(folder, recent)
        step = lines[-1]["step"] if lines else 0
        reason = f"stopped by hand at step {step}" if name == STOPPED else now.description
        if name == "running" and len(lines) >= WATCHED and (why := why_no_signal(lines)):
            reason = "; ".join(filter(None, (reason, f"no signal in the last {len(lines)} steps: {why}")))
        return cls(name, reason, step, [line["metrics"] for line in lines], now)
