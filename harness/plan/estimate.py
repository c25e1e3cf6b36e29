"""Estimates what a matrix costs, and finds what this machine lacks for it; runs nothing, imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean

from harness.base.shape import Shape
from harness.config import Config
from harness.matrix import Cell, Progress
from harness.plan import cost
from harness.plan.cost import SPEEDS, Engine, Footprint, Needs
from harness.plan.lacks import no_device, no_memory, no_room, no_vllm, not_prepared, not_usable, too_large, too_small
from harness.plan.machine import Machine

STATES = ("done", "running", "stale", "failed", "outdated", "planned")
USUAL = 80 * 10**9  # bytes of the GPU that vLLM's cache is reckoned for where none is known


@dataclass(frozen=True)
class Plan:
    config: Config
    kind: str  # cuda | cpu
    gpu: int  # bytes of the one that each process has, or is taken to have
    states: dict[str, int]  # how many cells are in each
    footprints: list[Footprint]
    measured: float | None  # seconds of one cell after the other for the missing cells, by the cells that are done
    assumed: float | None  # the same by assumption; None where the shape of a model is unknown
    lacks: list[str]
    at_once: int  # cells side by side
    progress: list[tuple[Cell, Progress]]

    @property
    def seconds(self) -> float | None:
        """Returns the seconds of the missing cells one after the other, as well as they are known."""
        return self.assumed if self.measured is None else self.measured

    @property
    def missing(self) -> int:
        return sum(self.states.values()) - self.states.get("done", 0)


def of(config: Config, matrix: Sequence[Cell], machine: Machine, at_once: int | None = None) -> Plan:
    """Returns the plan for a machine; `at_once`: cells side by side, where it is not the machine that says it."""
    settled = matrix[0].settled  # the engine in it depends on the model, the device and the compute type do not
    kind = settled.hardware.device
    size, needs = cost.width(settled), needs_of(matrix)
    chosen_engines = {cell.model: cell.settled.rollout.engine for cell in matrix}
    known = {cell.model: cell.shared.model(cell.model) for cell in matrix}
    shapes = {name: shape for name, model in known.items() if (shape := model.shape()) is not None}
    gpu = machine.gpu(config.hardware) or USUAL
    engines = {
        name: cost.vllm(shape, config, size, kind, gpu) if chosen_engines[name] == "vllm" else cost.EMBEDDED
        for name, shape in shapes.items()
    }
    footprints = [
        Footprint(
            name,
            shape,
            tuple(method for method in config.methods if needs[method] == each),
            each,
            cost.memory(shape, config, each, size, engines[name]),
            engines[name],
            cost.fitting(shape, config, size, engines[name]),
        )
        for name, shape in shapes.items()
        for each in dict.fromkeys(needs.values())
    ]
    progress = [(cell, cell.progress()) for cell in matrix]
    missing = [cell for cell, now in progress if now.state != "done"]
    states = [now.state for _, now in progress]
    complete = len(shapes) == len(known)
    assumed = time(config, missing, shapes, needs, engines, kind, size) if complete else None
    lacks = [
        *no_device(settled, machine, missing, assumed),
        *no_vllm(kind, [model.shape() for name, model in known.items() if chosen_engines[name] == "vllm"]),
        *too_large(settled, machine, footprints, size, len(missing)),
        *too_small(config, footprints, size),
        *no_memory(settled, machine, footprints),
        *no_room(config, machine, missing, known, shapes, needs),
        *not_prepared(config),
        *(sentence for name, model in known.items() for sentence in not_usable(model, chosen_engines[name])),
    ]
    return Plan(
        config,
        kind,
        gpu,
        {state: states.count(state) for state in STATES if state in states},
        footprints,
        by_likeness(missing, progress),
        assumed,
        lacks if missing else [],
        at_once or machine.at_once(settled),
        progress,
    )


def needs_of(matrix: Sequence[Cell]) -> dict[str, Needs]:
    """Returns what each method needs that takes memory of its own."""
    methods = {cell.method: cell.shared.method(cell.method) for cell in matrix}
    return {spec: frozenset(method.needs & {"values", "ref_logp"}) for spec, method in methods.items()}


def time(
    config: Config,
    missing: Sequence[Cell],
    shapes: Mapping[str, Shape],
    needs: Mapping[str, Needs],
    engines: Mapping[str, Engine],
    kind: str,
    size: int,
) -> float:
    """Seconds of one cell after the other, by assumption: the missing ones, and the filter once for each model."""
    if not missing:
        return 0.0
    speed = SPEEDS[kind]
    alike = Counter((cell.model, needs[cell.method]) for cell in missing)
    cells = sum(
        number * cost.seconds(shapes[model], config, each, size, speed, engines[model])
        for (model, each), number in alike.items()
    )
    return cells + sum(
        cost.generating(shape, asked.responses, config, size, speed, engines[name])
        for name, shape in shapes.items()
        for asked in cost.filtered(config).values()
    )


def by_likeness(missing: Sequence[Cell], progress: Sequence[tuple[Cell, Progress]]) -> float | None:
    """Seconds of the missing cells: each as the mean of the done ones of its model and task, or else of all."""
    spent: dict[tuple[str, str], list[float]] = {}
    for cell, now in progress:
        if now.state == "done":
            spent.setdefault((cell.model, cell.task), []).append(now.seconds)
    if not spent:
        return None
    means, of_all = {alike: mean(seconds) for alike, seconds in spent.items()}, mean(chain(*spent.values()))
    return sum(means.get((cell.model, cell.task), of_all) for cell in missing)
