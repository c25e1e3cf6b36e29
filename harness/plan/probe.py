"""Measures some steps of the largest cell, and says how far the closed form is off."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.base.errors import UserError
from harness.cells.log import MetricsLog
from harness.cells.state import State
from harness.matrix import Cell, Shared
from harness.plan import cost
from harness.plan.cost import SPEEDS
from harness.plan.estimate import Plan
from harness.terminal.units import long

STEPS = 3  # of which the first, which takes longer than others, does not count
ELSEWHERE = ("time/evaluate_s", "time/judging_s")  # no part of a step, or beside another one


@dataclass(frozen=True)
class Probe:
    label: str
    measured: float  # seconds of a step
    assumed: float
    length: float  # tokens of a response
    allowed: int


def largest(plan: Plan, matrix: Sequence[Cell]) -> Cell:
    """Returns the missing cell that takes the most memory."""
    peaks = {(each.model, method): each.memory.peak for each in plan.footprints for method in each.methods}
    missing = [cell for cell in matrix if (cell.model, cell.method) in peaks and cell.progress().state != "done"]
    if not missing:
        raise UserError("--probe measures a cell that is to run; here all are done, or no shape of a model is known")
    return max(missing, key=lambda cell: peaks[cell.model, cell.method])


def short(cell: Cell, folder: Path) -> Cell:
    """Returns a cell that takes some of its steps and leaves all else out, with a folder of its own."""
    config = cell.config
    train = dataclasses.replace(config.train, steps=STEPS, filter=None)
    rollout = dataclasses.replace(config.rollout, lag=min(config.rollout.lag, STEPS - 1))
    evaluation = dataclasses.replace(config.eval, problems=1, samples=config.eval.k, every=0, by_task={})
    checkpoint = dataclasses.replace(config.checkpoint, save_model=False)
    less = dataclasses.replace(
        config, results=str(folder), train=train, rollout=rollout, eval=evaluation, checkpoint=checkpoint
    )
    return dataclasses.replace(cell, config=less, shared=Shared(less))


def read(cell: Cell, ran: Cell, plan: Plan) -> Probe:
    """Returns what the short cell has shown of a cell."""
    state = State.read(ran.folder)
    if state.state != "done":
        raise UserError(f"the measured cell, {cell.label}, failed: {state.reason}")
    steps = [line["metrics"] for line in MetricsLog(ran.folder).read()[2:]]
    [own] = [each for each in plan.footprints if each.model == cell.model and cell.method in each.methods]
    speed, size = SPEEDS[plan.kind], cost.width(cell.settled)
    assumed = cost.stepping(own.shape, cell.config, own.needs, size, speed, own.engine)
    length = fmean(step["responses/length"] for step in steps)
    return Probe(cell.label, fmean(map(seconds, steps)), assumed, length, cell.config.rollout.max_new_tokens)


def seconds(step: Mapping[str, Any]) -> float:
    return sum(value for key, value in step.items() if key.startswith("time/") and key not in ELSEWHERE)


def told(probe: Probe, plan: Plan) -> list[str]:
    """Returns what was measured, and what the matrix takes if all of it is off by as much."""
    ratio, side = probe.measured / probe.assumed, min(plan.at_once, plan.missing)
    lines = [
        f"measured: a step of {probe.label} took {probe.measured:.3g} s with responses of {probe.length:,.0f} tokens; "
        f"the closed form says {probe.assumed:.3g} s with {probe.allowed:,}, so it is off by a factor of {ratio:.2g}"
    ]
    if plan.assumed is not None:
        lines.append(
            f"at that speed the {plan.missing} cells take {long(ratio * plan.assumed)} one after the other, and "
            f"{long(ratio * plan.assumed / side)} with {side} at once"
        )
    return lines
