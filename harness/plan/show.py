"""A plan as text for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from math import ceil

from rich.console import Console

import tasks
from harness import runs
from harness.base import terminal
from harness.base.devices import Device
from harness.base.errors import UserError
from harness.base.terminal import Column, console
from harness.base.units import GIB, about_duration, gib, plural, short_count
from harness.config import TRL, Config, setting_label
from harness.launch.machine import this_machine
from harness.matrix import Cell, cells
from harness.plan import cost
from harness.plan.cost import ResponseCount
from harness.plan.estimate import Plan, plan_for

AGES = 10**9  # seconds from now, about 30 years, after which no date is printed
DETAILED = GIB  # bytes from which on the parts of the memory are printed


def show_plans(
    config: Config, jobs: int | None = None, gpu: float | None = None, length: int | None = None
) -> list[Plan]:
    """Print the plan of each setting of the configuration's axes, and return them.

    `gpu`: the gigabytes of each GPU of a machine that has as many as a cell needs, in place of those of this one;
    `length`: the mean tokens of a response, in place of those that were measured.
    """
    if gpu is not None:
        if config.hardware.device == "cpu":
            raise UserError("hardware.device is cpu, but --gpu plans for GPUs; leave out one of the two")
        config = dataclasses.replace(config, hardware=dataclasses.replace(config.hardware, device="cuda"))
    settings: dict[str, list[Cell]] = {}
    for cell in cells(config):
        settings.setdefault(setting_label(cell.config.setting), []).append(cell)
    config_of = {setting: cells_of_setting[0].config for setting, cells_of_setting in settings.items()}
    runs.check_problem_counts(list(config_of.values()))
    machine, plans = this_machine(config), []
    if gpu is not None:
        devices = (Device("--gpu", int(gpu * 10**9)),) * config.hardware.ranks
        machine = dataclasses.replace(machine, devices=devices)
    for setting, cells_of_setting in settings.items():
        if setting:
            console.rule(setting, align="left")
        plan = plan_for(config_of[setting], cells_of_setting, machine, jobs, length)
        show_plan(console, plan)
        plans.append(plan)
    return plans


def show_plan(console: Console, plan: Plan) -> None:
    config = plan.config
    console.print(f"matrix {config.name}: {plural(sum(plan.states.values()), 'cell')} in {config.folder}")
    states = [[state, str(number)] for state, number in plan.states.items()]
    terminal.show_table(console, [Column("state"), Column("cells")], states)
    for line in [*work_lines(config), *length_lines(plan), *time_lines(plan), *memory_lines(plan)]:
        console.print(line)
    if plan.lacks:
        console.print("what is missing here:")
        for sentence in plan.lacks:
            console.print(f"  - {sentence}")


def work_lines(config: Config) -> Iterator[str]:
    """Yield what a cell samples and updates."""
    train, new = config.train, config.rollout.max_new_tokens
    step, evaluation = cost.step_responses(config), cost.evaluation_responses(config)
    updates = train.steps * train.updates * train.epochs
    yield (
        f"training, a cell: {train.steps:,} steps x {step.problems} prompts x {step.samples} responses of at most "
        f"{new:,} tokens, {short_count(train.steps * step.responses * new)} tokens at most; {updates:,} updates"
    )
    if train.short_warmup:
        yield train.short_warmup
    if train.resample is not None:
        at_once, draws = cost.draws_per_step(config)
        most = train.steps * draws * at_once.responses * new
        yield (
            f"resampling: a step draws {at_once.problems} prompts at a time, up to {draws} times, until "
            f"{step.problems} groups have signal; {short_count(most)} tokens a cell at most"
        )
    times = cost.evaluation_count(config)
    responses = sum(count.responses for count in evaluation.values())
    sets = [f"{name} {problems_text(count)}" for name, count in evaluation.items()]
    yield f"evaluation, a cell: {times} x ({', '.join(sets)}), {short_count(times * responses * new)} tokens at most"
    yield from tasks.descriptions([*config.tasks, *config.eval.tasks], config.plugins)
    for name, count in cost.filter_responses(config).items():
        yield (
            f"difficulty filter of {name}, once for each model: {problems_text(count)}, "
            f"{short_count(count.responses * new)} tokens at most"
        )


def length_lines(plan: Plan) -> Iterator[str]:
    """Yield what a cell samples with responses of the lengths that are known."""
    config = plan.config
    training = config.train.steps * cost.step_responses(config).responses
    evaluated = sum(count.responses for count in cost.evaluation_responses(config).values())
    evaluation = cost.evaluation_count(config) * evaluated
    for source, length in plan.lengths.items():
        in_training, in_evaluation = (short_count(round(number * length)) for number in (training, evaluation))
        yield (
            f"with {length:,.0f} tokens a response ({source}), about {in_training} tokens in training, "
            f"{in_evaluation} in evaluation"
        )


def problems_text(count: ResponseCount) -> str:
    about = "" if count.known else "about "
    return f"{about}{count.problems:,} problems x {count.samples}"


def time_lines(plan: Plan) -> Iterator[str]:
    """Yield the time of the missing cells, as far as finished cells with steps of the same size tell it."""
    measured, unmeasured = plan.measured, plan.missing
    if measured is not None:
        ranks = plural(plan.config.hardware.ranks, "process", "processes")
        scaled = "" if measured.length is None else f", and scaled to {measured.length:,} tokens a response"
        cells, took = plural(measured.cells, "cell"), about_duration(measured.seconds)
        yield (
            f"time: {cells} to run, {took} of {ranks}; measured on "
            f"{plural(measured.finished, 'finished cell')} with steps of the same size in {plan.config.folder}{scaled}"
        )
        unmeasured -= measured.cells
    if unmeasured:
        yield (
            f"time: {plural(unmeasured, 'cell')} to run, with steps of a size of which none has finished in "
            f"{plan.config.folder}; --probe measures a few steps"
        )
    if plan.seconds is not None:
        yield side_by_side_line(plan, plan.seconds)


def side_by_side_line(plan: Plan, seconds: float) -> str:
    """Return when all cells will be done, and the machine time that they take."""
    hardware, side = plan.config.hardware, min(plan.at_once, plan.missing)
    wall = seconds * ceil(plan.missing / side) / plan.missing  # as if all cells took equally long
    end = ""
    if wall < AGES:
        end = f", so until {datetime.now() + timedelta(seconds=wall):%a %d %b %Y %H:%M} if started now"
    on_gpu = plan.kind == "cuda"
    unit, units_per_rank = ("GPU", hardware.share) if on_gpu else ("core", hardware.threads)
    hours = seconds / 3600 * hardware.world * units_per_rank
    return f"{plural(side, 'cell')} at once: {about_duration(wall)}{end}; {hours:,.1f} {unit}-hours"


def memory_lines(plan: Plan) -> Iterator[str]:
    ranks = plan.config.hardware.ranks
    if plan.config.train.backend == TRL:
        yield "memory: not estimated, since TRL trains these cells"
        return
    whose = "memory" if ranks == 1 else f"memory of each of {ranks} processes"
    for footprint in plan.footprints:
        parameters = f"{footprint.shape.parameters:,} parameters, computed in {footprint.config.train.dtype}"
        methods = ", ".join(footprint.methods)
        yield f"{whose}, {footprint.model} ({parameters}) with {methods}: {gib(footprint.memory.needed(plan.kind))}"
        if footprint.memory.peak > DETAILED:
            yield f"  in training {parts_text(footprint.memory.training)}"
            yield f"  in generation {parts_text(footprint.memory.generation)}"
            if plan.kind == "cpu":
                yield f"  and {gib(footprint.memory.main_memory)} for the program and a checkpoint on its way to disk"
        bounded = plan.config.hardware.cache_gib is not None
        if bounded or footprint.engine.cache is not None:  # which only vLLM reserves
            where = f" on a GPU of {gib(footprint.gpu)}" if plan.kind == "cuda" and not bounded else ""
            yield f"  the engine's cache{where} holds {footprint.together:,} responses of full length at once"


def parts_text(bytes_of: Mapping[str, int]) -> str:
    """Return the sum and its parts, the largest first; a part that rounds to zero is left out."""
    ordered = sorted(bytes_of.items(), key=lambda item: -item[1])
    parts = [f"{name} {number / GIB:.1f}" for name, number in ordered if number >= GIB / 20]
    return f"{gib(sum(bytes_of.values()))}: {', '.join(parts)}"
