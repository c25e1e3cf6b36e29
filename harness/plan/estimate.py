"""The plan of a matrix: its cost, and the reasons why this machine cannot run it; runs nothing, imports no torch.

The time of missing cells follows from that of finished cells in the results folder whose steps are of the same size.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.base.errors import Damaged, UserError
from harness.base.units import plural
from harness.cells.log import MetricsLog
from harness.cells.spec import FILE as SPEC
from harness.cells.spec import CellSpec, is_adopted
from harness.cells.state import FILE as STATE
from harness.cells.state import Progress, State
from harness.config import Config
from harness.launch.machine import Machine
from harness.matrix import Cell
from harness.plan import cost
from harness.plan.cost import Footprint, Needs
from harness.plan.lacks import Obstacles
from harness.plan.prompts import with_longest_prompt

STATES = ("done", "running", "stale", "failed", "stopped", "planned")
USUAL = 80 * 10**9  # bytes of the GPU that is assumed where none is known
# The settings on which the time of a step and of an evaluation depends.
SIZE = {
    "train": ("prompts", "group", "updates", "epochs", "filter", "resample", "lora", "optimizer", "dtype", "backend"),
    "rollout": ("engine", "max_new_tokens", "max_prompt_tokens", "lag"),
    "eval": ("tasks", "split", "problems", "samples", "by_task"),
    "stop": ("tokens",),
    "hardware": ("device", "nodes", "ranks", "threads", "share", "micro_tokens", "recompute", "compile", "offload"),
}
NOT_STEPS = ("time/evaluate_s", "time/judging_s")  # not part of a step, or in parallel with one
OTHERS = 64  # earlier cells whose configurations are read, the newest first: a folder may hold thousands


@dataclass(frozen=True)
class CellTime:
    """The seconds of a cell, of which only those of steps and evaluations depend on their number."""

    step: float
    evaluation: float  # after a step
    rest: float  # the start with its evaluation, and steps that were taken twice
    length: float | None  # mean tokens of a response in training, if they were counted

    @classmethod
    def read(cls, folder: Path, seconds: float) -> CellTime:
        """Return the parts of a finished cell's seconds."""
        steps = [line["metrics"] for line in MetricsLog(folder).read() if line["step"] > 0]
        evaluated = [
            step.get("time/evaluate_s", 0.0) for step in steps if any(name.startswith("eval/") for name in step)
        ]
        taken = [seconds_of_step(step) for step in steps]
        rest = seconds - sum(taken) - sum(evaluated)
        lengths = [step["responses/length"] for step in steps if "responses/length" in step]
        return cls(fmean(taken or [0.0]), fmean(evaluated or [0.0]), rest, fmean(lengths) if lengths else None)

    def of(self, config: Config, length: int | None) -> float:
        """Return the seconds of a cell with steps and evaluations of the same size.

        `length`: the mean tokens of a response, to which they are in proportion, if not those that were measured.
        """
        evaluations = cost.evaluation_count(config) - 1  # that before the first step is part of the rest
        longer = length / self.length if length and self.length else 1
        return longer * (config.train.steps * self.step + evaluations * self.evaluation) + self.rest


def seconds_of_step(metrics: Mapping[str, Any]) -> float:
    return sum(value for key, value in metrics.items() if key.startswith("time/") and key not in NOT_STEPS)


@dataclass(frozen=True)
class MeasuredTime:
    """The time of the missing cells that have finished cells with steps of the same size."""

    seconds: float  # of these missing cells, one after the other
    cells: int
    finished: int  # cells with steps of the same size that have finished
    length: int | None = None  # mean tokens of a response for which it was scaled


@dataclass(frozen=True)
class Plan:
    """The cost of one setting of a matrix on one machine."""

    config: Config
    kind: str  # cuda | cpu
    states: dict[str, int]  # number of cells in each state
    footprints: list[Footprint]
    measured: MeasuredTime | None  # of the missing cells for which finished ones of the same size exist
    lengths: dict[str, float]  # mean tokens of a response, as far as they are known, by their source
    lacks: list[str]
    at_once: int  # cells side by side
    progress: list[tuple[Cell, Progress]]

    @property
    def seconds(self) -> float | None:
        """The time of the missing cells, one after the other; None until one of each size has finished."""
        if self.measured is None or self.measured.cells < self.missing:
            return None
        return self.measured.seconds

    @property
    def missing(self) -> int:
        return sum(now.missing for _, now in self.progress)


def plan_for(
    config: Config, matrix: Sequence[Cell], machine: Machine, at_once: int | None = None, length: int | None = None
) -> Plan:
    """Return the plan for a machine.

    `at_once`: cells side by side, if the machine does not decide it; `length`: the mean tokens of a response, if what
    was measured does not.
    """
    if length is not None and not 1 <= length <= config.rollout.max_new_tokens:
        allowed = f"1 to {config.rollout.max_new_tokens:,} (rollout.max_new_tokens)"
        raise UserError(f"--length is {length}; allowed: {allowed}")
    shared, settled = matrix[0].shared, matrix[0].settled  # the device in it does not depend on the model
    in_memory = {"values", "ref_logp"}  # needs that take memory of their own
    needs = {cell.method: frozenset(shared.method(cell.method).needs & in_memory) for cell in matrix}
    asked = [(shared.task(name), "train") for name in config.tasks]
    asked += [(shared.task(name), config.eval.split) for name in config.eval.tasks or config.tasks]
    models = {cell.model: shared.model(cell.model) for cell in matrix}
    settled_of = {cell.model: cell.settled for cell in matrix}
    chosen_engines = {name: of_model.rollout.engine for name, of_model in settled_of.items()}
    gpu = machine.gpu(config.hardware) or USUAL
    methods_by_needs: dict[Needs, list[str]] = {}
    for method in config.methods:
        methods_by_needs.setdefault(needs[method], []).append(method)
    footprints = []
    for name, model in models.items():
        of_model = with_longest_prompt(settled_of[name], model, asked)
        shape = model.shape()
        if shape is None:
            continue
        for which, methods in methods_by_needs.items():
            footprints.append(Footprint(name, shape, of_model, tuple(methods), which, gpu))
    progress = [(cell, cell.progress()) for cell in matrix]
    counts = Counter(now.state for _, now in progress)
    lacks = []
    room = machine.at_once(settled)
    if missing := [cell for cell, now in progress if now.missing]:
        side_by_side = min(at_once or room, room)  # --jobs may count cells on other machines
        obstacles = Obstacles(settled, machine, missing, models, chosen_engines, needs, footprints, side_by_side)
        lacks = list(obstacles.sentences())
    times = finished_times(config, progress)
    return Plan(
        config,
        settled.hardware.device,
        {state: counts[state] for state in STATES if counts[state]},
        footprints,
        measured_time(times, progress, length),
        known_lengths(times, progress) if length is None else {"--length": length},
        lacks,
        at_once or room,
        progress,
    )


# The time, by finished cells


Times = Mapping[str, Sequence[CellTime]]  # of finished cells, by size


def finished_times(config: Config, progress: Sequence[tuple[Cell, Progress]]) -> Times:
    """Return the times of finished cells; of those that are not in the plan only if its own do not tell all sizes."""
    times: dict[str, list[CellTime]] = {}
    for cell, now in progress:
        add_if_finished(times, size_of_cell(cell), cell.folder, now.record)
    if any(size_of_cell(cell) not in times for cell, now in progress if now.missing):
        ours = {cell.folder for cell, _ in progress}
        for size, folder, record in earlier_records(config.folder, ours):
            add_if_finished(times, size, folder, record)
    return times


def measured_time(times: Times, progress: Sequence[tuple[Cell, Progress]], length: int | None) -> MeasuredTime | None:
    """Return the time of the missing cells of which finished ones of the same size exist; None if there are none."""
    known: dict[str, list[CellTime]] = {}
    for size, of_size in times.items():
        if usable := [time for time in of_size if length is None or time.length]:
            known[size] = usable
    missing = [(size_of_cell(cell), cell.config) for cell, now in progress if now.missing]
    seconds = [fmean(time.of(settings, length) for time in known[size]) for size, settings in missing if size in known]
    if not seconds:
        return None
    finished = sum(len(known[size]) for size in {size for size, _ in missing} & known.keys())
    return MeasuredTime(sum(seconds), len(seconds), finished, length)


def known_lengths(times: Times, progress: Sequence[tuple[Cell, Progress]]) -> dict[str, float]:
    """Return the length of responses for each model and task of the missing cells, as far as it was measured."""
    first: dict[tuple[str, str], Cell] = {}
    for cell, now in progress:
        if now.missing:
            first.setdefault((cell.model, cell.task), cell)
    lengths = {}
    for (model, task), cell in first.items():
        counted = [time.length for time in times.get(size_of_cell(cell), ()) if time.length is not None]
        if counted:
            source = f"{model} on {task}, the mean of {plural(len(counted), 'finished cell')}"
            lengths[source] = fmean(counted)
    return lengths


def add_if_finished(times: dict[str, list[CellTime]], size: str, folder: Path, record: State) -> None:
    """Add the time of a cell that has taken all of its steps, which one that collapsed has not."""
    if record.state == "done" and record.collapsed is None:
        with suppress(Damaged):  # its time is not known; `status` and `run` say what is damaged
            times.setdefault(size, []).append(CellTime.read(folder, record.seconds))


def earlier_records(folder: Path, ours: Collection[Path]) -> Iterator[tuple[str, Path, State]]:
    """Yield the size, the folder and the state of the newest cells in a matrix's folder that are not ours: of other
    settings, methods, or versions."""
    changed: dict[Path, float] = {}
    for path in folder.glob(f"*/{SPEC}"):
        # The folder may be cleaned meanwhile, and a damaged cell outside of the plan does not affect it.
        with suppress(FileNotFoundError):
            if path.parent not in ours and not is_adopted(path.parent):  # which was evaluated and not trained
                changed[path.parent] = (path.parent / STATE).stat().st_mtime
    for cell_folder in nlargest(OTHERS, changed, key=lambda path: changed[path]):
        with suppress(Damaged):
            spec = CellSpec.read(cell_folder)
            yield size_of(spec.key.model, spec.key.task, spec.settings), cell_folder, State.read(cell_folder)


def size_of_cell(cell: Cell) -> str:
    return size_of(cell.model, cell.task, cell.shared.settled(cell.config, cell.model).plain)


def size_of(model: str, task: str, settings: Mapping[str, Any]) -> str:
    """Return a text that is equal for cells with steps of the same size, which the method is not part of."""
    parts: dict[str, Any] = {"model": model, "task": task}
    for section, keys in SIZE.items():
        values = settings.get(section, {})
        parts |= {f"{section}.{key}": values.get(key) for key in keys}
    return json.dumps(parts, sort_keys=True, default=str)
