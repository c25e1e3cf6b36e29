"""Made-up cells: folders as a trainer leaves them, without any training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base import files
from harness.cells import checksums, evaluations
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.spec import CellKey, CellSpec
from harness.cells.state import State
from harness.config import Config

BEGAN = 1.0e9  # seconds since 1970


@dataclass(frozen=True)
class Answers:
    """An evaluation of a cell: by problem and sample, whether an answer is right."""

    step: int
    right: Sequence[Sequence[int]]
    task: str = "countdown"
    problems: Sequence[str] = ()  # if not given: p0, p1, ...
    distinct: Sequence[int] | None = None  # right answers to each problem; None: all right ones are the same
    solutions: Sequence[int] | None = None
    flags: Sequence[str] = ()
    samples: Sequence[Mapping[str, Any]] = ()  # the texts, by problem

    def write(self, folder: Path) -> None:
        record = {
            "task": self.task,
            "step": self.step,
            "problems": list(self.problems) or [f"p{number}" for number in range(len(self.right))],
            "right": [list(row) for row in self.right],
            "flags": list(self.flags),
            "right_distinct": self.distinct or [int(any(row)) for row in self.right],
            "solutions": self.solutions,
        }
        evaluations.write_evaluation(folder, record)
        if self.samples:
            files.write_lines(folder / "samples" / f"evaluate-{self.task}-{self.step:06d}.jsonl", self.samples)


def make_spec(
    method: str = "grpo",
    seed: int = 0,
    task: str = "countdown",
    model: str = "tiny",
    *,
    id: str = "0123456789ab",
    matrix: str = "demo",
    identity: Mapping[str, Any] | None = None,
    config: Config | None = None,
) -> CellSpec:
    """Return the record of a cell; unlike in a configuration, any name is allowed."""
    settings = dataclasses.asdict(config or Config())
    return CellSpec(id, matrix, CellKey(method, task, model, seed), {"seed": seed, **(identity or {})}, settings)


def write_cell(
    folder: Path,
    spec: CellSpec | None = None,
    state: str = "done",
    steps: Iterable[Mapping[str, float]] = (),
    answers: Iterable[Answers] = (),
    *,
    began: float = BEGAN,
    pace: float = 1.0,
    made: Mapping[str, Any] | None = {},
    **fields: Any,
) -> Path:
    """Write the records of a cell, and return its folder.

    `steps`: the metrics of each step, from step 0 on, which are `pace` seconds apart; without any, earlier ones stay.
    `made`: what differs in the record of its attempt; None for a cell that has not begun. `fields`: of its state.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if spec is not None:
        spec.write(folder)
    if made is not None:
        attempt, sources = (spec.id, spec.identity.get("source", {})) if spec else (folder.name, {})
        origin = Made(attempt, began, "0.1.0", None, None, sources, {}, "a processor", "cpu")
        dataclasses.replace(origin, **made).write(folder)
    lines = [{"step": step, "time": began + pace * step, "metrics": metrics} for step, metrics in enumerate(steps)]
    if lines:
        MetricsLog(folder).write(lines)
    for evaluation in answers:
        evaluation.write(folder)
    State(device="cpu", durable_step=len(lines) - 1).write(folder)
    set_state(folder, state, **fields)
    return folder


def set_state(folder: Path, state: str, reason: str | None = None, **fields: Any) -> None:
    """Change the state of a cell; a cell that is done has its records sealed, as by its process."""
    if state == "done":
        folder.mkdir(parents=True, exist_ok=True)
        MetricsLog(folder).path.touch()
        checksums.write_checksums(folder)
    dataclasses.replace(State.known(folder), state=state, reason=reason, **fields).write(folder)
