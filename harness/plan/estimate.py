"""The plan of a matrix: its cost, and the reasons why this machine cannot run it; runs nothing, imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.base.shape import Shape
from harness.config import Config
from harness.launch.machine import Machine
from harness.matrix import Cell, Progress
from harness.plan import cost
from harness.plan.cost import SPEEDS, EngineLimits, Footprint, Needs
from harness.plan.lacks import Obstacles
from harness.plan.measured import MeasuredTime, measured_time

STATES = ("done", "running", "stale", "failed", "stopped", "planned")
USUAL = 80 * 10**9  # bytes of the GPU that is assumed where none is known


@dataclass(frozen=True)
class Plan:
    """The cost of one setting of a matrix on one machine."""

    config: Config
    kind: str  # cuda | cpu
    gpu: int  # bytes of each process's GPU, known or assumed
    states: dict[str, int]  # number of cells in each state
    footprints: list[Footprint]
    measured: MeasuredTime | None  # of the missing cells for which finished ones of the same size exist
    unmeasured: float | None  # assumed seconds of the other missing cells; None if the shape of a model is unknown
    assumed: float | None  # assumed seconds of all missing cells, one after the other; None as above
    lacks: list[str]
    at_once: int  # cells side by side
    progress: list[tuple[Cell, Progress]]

    @property
    def seconds(self) -> float | None:
        """The time of the missing cells, one after the other: measured if possible, the rest assumed."""
        if self.unmeasured is None:
            return None
        return self.unmeasured + (self.measured.seconds if self.measured else 0.0)

    @property
    def missing(self) -> int:
        return sum(now.missing for _, now in self.progress)


@dataclass(frozen=True)
class Assumption:
    """All on which the assumed time of cells depends."""

    config: Config
    shapes: Mapping[str, Shape]  # by model
    needs: Mapping[str, Needs]  # by method
    engines: Mapping[str, EngineLimits]  # by model
    kind: str
    size: int  # bytes of the compute type

    def seconds(self, cells: Sequence[Cell]) -> float | None:
        """Return the seconds of cells one after the other, with the filter once for each model; None if a shape is
        unknown."""
        models = dict.fromkeys(cell.model for cell in cells)
        if not models.keys() <= self.shapes.keys():
            return None
        speed, total = SPEEDS[self.kind], 0.0
        # Cells of one model whose methods need the same take equally long, and a matrix may have thousands.
        alike = Counter((cell.model, self.needs[cell.method]) for cell in cells)
        for (model, needs), number in alike.items():
            arguments = self.shapes[model], self.config, needs, self.size, speed, self.engines[model]
            total += number * cost.cell_seconds(*arguments)
        for model in models:
            for count in cost.filter_responses(self.config).values():
                total += cost.generation_seconds(
                    self.shapes[model], count.responses, self.config, self.size, speed, self.engines[model]
                )
        return total


def plan_for(config: Config, matrix: Sequence[Cell], machine: Machine, at_once: int | None = None) -> Plan:
    """Return the plan for a machine; `at_once`: cells side by side, if the machine does not decide it."""
    settled = matrix[0].settled  # the engine in it depends on the model, the device and the compute type do not
    kind = settled.hardware.device
    size, needs = cost.compute_bytes(settled), needs_of(matrix)
    chosen_engines, models = {}, {}
    for cell in matrix:
        chosen_engines[cell.model] = cell.settled.rollout.engine
        models[cell.model] = cell.shared.model(cell.model)
    gpu = machine.gpu(config.hardware) or USUAL
    shapes: dict[str, Shape] = {}
    engines: dict[str, EngineLimits] = {}
    footprints: list[Footprint] = []
    for name, model in models.items():
        shape = model.shape()
        if shape is None:
            continue
        with_vllm = chosen_engines[name] == "vllm"
        engine = cost.vllm_limits(shape, config, size, kind, gpu) if with_vllm else cost.EMBEDDED
        shapes[name], engines[name] = shape, engine
        for which in dict.fromkeys(needs.values()):
            footprints.append(footprint_of(name, shape, config, needs, which, size, engine))
    progress, missing = [], []
    counts = dict.fromkeys(STATES, 0)
    for cell in matrix:
        now = cell.progress()
        progress.append((cell, now))
        counts[now.state] += 1
        if now.missing:
            missing.append(cell)
    assumption = Assumption(config, shapes, needs, engines, kind, size)
    assumed = assumption.seconds(missing)  # also used to judge whether a CPU is too slow
    measured, unmeasured = measured_time(config, progress)
    lacks = []
    if missing:
        obstacles = Obstacles(settled, machine, missing, models, chosen_engines, needs, footprints, size, assumed)
        lacks = list(obstacles.sentences())
    present_states = {state: number for state, number in counts.items() if number}
    return Plan(
        config,
        kind,
        gpu,
        present_states,
        footprints,
        measured,
        assumption.seconds(unmeasured),
        assumed,
        lacks,
        at_once or machine.at_once(settled),
        progress,
    )


def footprint_of(
    model: str,
    shape: Shape,
    config: Config,
    needs: Mapping[str, Needs],
    which: Needs,
    size: int,
    engine: EngineLimits,
) -> Footprint:
    """Return the footprint of a model with the methods that have these needs."""
    methods = tuple(method for method in config.methods if needs[method] == which)
    memory = cost.memory_estimate(shape, config, which, size, engine)
    together = cost.sequences_at_once(shape, config, size, engine)
    return Footprint(model, shape, methods, which, memory, engine, together)


def needs_of(matrix: Sequence[Cell]) -> dict[str, Needs]:
    """Return the needs of each method that take memory of their own."""
    needs = {}
    for cell in matrix:
        needs[cell.method] = frozenset(cell.shared.method(cell.method).needs & {"values", "ref_logp"})
    return needs
