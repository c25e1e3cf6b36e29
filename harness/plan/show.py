"""The plan as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from math import ceil

from rich.console import Console

from harness.config import Config
from harness.plan import cost
from harness.plan.cost import SPEEDS, Asked
from harness.plan.estimate import Plan
from harness.terminal import layout
from harness.terminal.layout import Column
from harness.terminal.units import GIB, gib, long, short

AGES = 10**9  # seconds from now on which no date is worth telling
DETAILED = GIB  # from so many bytes on it is worth saying what they are for


def show(console: Console, plan: Plan) -> None:
    config = plan.config
    console.print(f"matrix {config.name}: {sum(plan.states.values())} cells in {config.folder}")
    states = [[state, str(number)] for state, number in plan.states.items()]
    layout.show(console, [Column("state"), Column("cells")], states)
    for line in [*work(config), *costs(plan)]:
        console.print(line)
    if plan.lacks:
        console.print("what is missing here:")
        for sentence in plan.lacks:
            console.print(f"  - {sentence}")


def work(config: Config) -> Iterator[str]:
    train, new = config.train, config.rollout.max_new_tokens
    step, scored = cost.trained(config), cost.scored(config)
    updates = train.steps * train.updates * train.epochs
    yield (
        f"training, a cell: {train.steps:,} steps x {step.problems} prompts x {step.samples} responses of at most "
        f"{new:,} tokens, {short(train.steps * step.responses * new)} tokens at most; {updates:,} updates"
    )
    if train.resample is not None:
        at_once, batches = cost.drawn(config)
        most = train.steps * batches * at_once.responses * new
        yield (
            f"resampling: a step draws {at_once.problems} prompts at a time, up to {batches} times, until "
            f"{step.problems} groups have signal; {short(most)} tokens a cell at most"
        )
    times, responses = cost.evaluations(config), sum(asked.responses for asked in scored.values())
    sets = ", ".join(f"{name} {size(asked)}" for name, asked in scored.items())
    yield f"evaluation, a cell: {times} x ({sets}), {short(times * responses * new)} tokens at most"
    for name, asked in cost.filtered(config).items():
        yield (
            f"difficulty filter of {name}, once for each model: {size(asked)}, "
            f"{short(asked.responses * new)} tokens at most"
        )


def size(asked: Asked) -> str:
    return f"{'' if asked.known else 'about '}{asked.problems:,} problems x {asked.samples}"


def costs(plan: Plan) -> Iterator[str]:
    ranks = plan.config.hardware.ranks
    if plan.missing and plan.measured is not None:
        process = "one process" if ranks == 1 else f"{ranks} processes"
        yield f"time: {plan.missing} cells to run, {long(plan.measured)} of {process} by the cells that are done"
    elif plan.missing and plan.assumed is not None:
        speed = SPEEDS[plan.kind]
        of = speed.of if ranks == 1 else f"{ranks} processes, each on {speed.of},"
        also = " and every step draws as often as allowed" if plan.config.train.resample else ""
        yield (
            f"time: {plan.missing} cells to run, {long(plan.assumed)} of {of} if every response is as long as allowed"
            f"{also}; assumed, not measured ({speed.flops:.2g} operations and {speed.bandwidth:.2g} bytes a second)"
        )
    if plan.missing and plan.seconds is not None:
        yield side_by_side(plan, plan.seconds)
    of_each = "memory" if ranks == 1 else f"memory of each of {ranks} processes"
    for each in plan.footprints:
        training, generation = sum(each.memory.training.values()), sum(each.memory.generation.values())
        yield (
            f"{of_each}, {each.model} ({each.shape.parameters:,} parameters) with {', '.join(each.methods)}: "
            f"{gib(each.memory.peak)}"
        )
        if each.memory.peak > DETAILED:
            yield f"  in training {gib(training)}: {parts(each.memory.training)}"
            yield f"  in generation {gib(generation)}: {parts(each.memory.generation)}"
        if each.engine.cache is not None:
            reckoned = plan.kind == "cuda" and plan.config.hardware.cache_gib is None
            on = f" on a GPU of {gib(plan.gpu)}" if reckoned else ""
            yield f"  vLLM's cache{on} holds {each.together:,} responses of full length at once"


def side_by_side(plan: Plan, seconds: float) -> str:
    """Returns when all cells are done, and what that takes."""
    hardware, side = plan.config.hardware, min(plan.at_once, plan.missing)
    wall = seconds * ceil(plan.missing / side) / plan.missing  # cells are taken for equally long
    end = f", so until {datetime.now() + timedelta(seconds=wall):%a %d %b %Y %H:%M} if begun now" if wall < AGES else ""
    on_gpu = plan.kind == "cuda"
    hours = seconds / 3600 * hardware.world * (hardware.share if on_gpu else hardware.threads)
    cells = "1 cell" if side == 1 else f"{side} cells"
    return f"{cells} at once: {long(wall)}{end}; {hours:,.1f} {'GPU' if on_gpu else 'core'}-hours"


def parts(bytes_of: Mapping[str, int]) -> str:
    """The largest first; what rounds to nothing is left out."""
    ordered = sorted(bytes_of.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {number / GIB:.1f}" for name, number in ordered if number >= GIB / 20)
