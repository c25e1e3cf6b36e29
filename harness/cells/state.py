"""How far a cell is: the state that its process and its launcher write, and what others read from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.base import files
from harness.base.errors import Damaged
from harness.cells import checksums, lease, provenance
from harness.cells.log import FILE as METRICS
from harness.cells.log import last_lines
from harness.cells.provenance import Made

FILE = "state.json"
STATES = ("planned", "running", "done", "failed")  # that are written
STALE = "stale"  # running by its record, but no process works on it: the next run goes on from its last checkpoint
OUTDATED = "outdated"  # done, failed or half done by another source of its method or task: the next run begins anew


@dataclass(frozen=True)
class State:
    state: str = "planned"
    reason: str | None = None  # of a failure, or a warning; while it starts, what it is busy with
    durable_step: int = -1  # the last step that no interruption can undo; -1 before the first
    seconds: float = 0.0  # of work, over all lives of the cell
    device: str = ""
    where: list[str] = field(default_factory=list)  # the machine of each rank, and its GPU if it has one
    collapsed: int | None = None  # the step after which it ended, since the entropy was below stop.entropy_below

    @classmethod
    def read(cls, folder: Path) -> State:
        """Returns the state of a cell, which is planned where there is none yet."""
        path = folder / FILE
        try:
            given = files.read_json(path)
        except FileNotFoundError:
            if (folder / METRICS).exists():  # which nobody writes before there is a state
                raise Damaged(path, "it is missing") from None
            return cls()
        if not isinstance(given, dict) or given.keys() != KNOWN or given["state"] not in STATES:
            raise Damaged(path, f"it must hold {', '.join(sorted(KNOWN))}, and its state be one of {', '.join(STATES)}")
        numbers = given["durable_step"], given["seconds"], given["collapsed"] or 0
        if not {*map(type, numbers)} <= {int, float} or not isinstance(given["reason"], str | None):
            raise Damaged(path, "its reason must be a text, and its step and its seconds numbers")
        return cls(**given)

    @classmethod
    def known(cls, folder: Path) -> State:
        """Returns the state of a cell; one whose record is damaged has failed."""
        try:
            return cls.read(folder)
        except Damaged as damage:
            return cls("failed", str(damage))

    def write(self, folder: Path) -> None:
        assert self.state in STATES
        # A reason may quote a text that no encoding has a place for, and that no store would take.
        told = self.reason and self.reason.encode(errors="backslashreplace").decode()
        files.write_json(folder / FILE, dataclasses.asdict(self) | {"reason": told})

    @property
    def told(self) -> str | None:
        """Returns all that people must know of the state beside its name."""
        collapsed = None if self.collapsed is None else f"collapsed at step {self.collapsed}"
        return "; ".join(filter(None, (collapsed, self.reason))) or None

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed")


KNOWN = {each.name for each in dataclasses.fields(State)}


def change(folder: Path, **changes: Any) -> State:
    """Writes some fields of a cell's state, and leaves the others as they are."""
    state = dataclasses.replace(State.read(folder), **changes)
    state.write(folder)
    return state


@dataclass(frozen=True)
class Progress:
    """How far a cell is, as people are told."""

    state: str  # planned | running | done | failed | stale | outdated
    reason: str | None = None
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)  # of that step
    seconds: float = 0.0
    record: State = field(default_factory=State, compare=False)  # state.json as it was read for this
    recent: list[dict[str, float]] = field(default_factory=list, compare=False)  # metrics of the last steps

    @classmethod
    def read(cls, folder: Path, sources: Mapping[str, str] | None = None, recent: int = 1) -> Progress:
        """Return how far a cell is; with the hashes of the present sources of its components, what was made by others
        is outdated. One whose records are damaged has failed, whatever they say."""
        try:
            record = State.read(folder)
        except Damaged as damage:
            return cls("failed", str(damage), record=State("failed", str(damage)))
        try:
            return cls.of_records(folder, record, sources, recent)
        except Damaged as damage:
            return cls("failed", str(damage), record=record)

    @classmethod
    def of_records(cls, folder: Path, now: State, sources: Mapping[str, str] | None, recent: int) -> Progress:
        if now.state == "planned":
            return cls("planned", record=now)
        name = STALE if now.state == "running" and lease.holder(folder) is None else now.state
        if sources is not None and name != "running":
            record = Made.read(folder)
            if record is not None or name == "done":  # before its first attempt began, a cell may only have failed
                why = provenance.by_another_source(record.sources if record else None, sources)
                if why is not None:
                    return cls(OUTDATED, why, record=now)
        if name == "done":
            checksums.check_sizes(folder)
        lines = last_lines(folder, recent)
        last = lines[-1] if lines else {}
        metrics = [line["metrics"] for line in lines]
        return cls(name, now.told, last.get("step", 0), last.get("metrics", {}), now.seconds, now, metrics)
