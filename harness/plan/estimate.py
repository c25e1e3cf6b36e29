"""What a matrix would cost, and what this machine lacks for it; runs and writes nothing, imports no torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

import baselines
import tasks
from harness import data, rollout
from harness.base.shape import ARCHITECTURES, Shape
from harness.config import Config
from harness.launch.progress import duration
from harness.matrix import Cell, Progress
from harness.method import Method
from harness.plan import cost
from harness.plan.cost import SPEEDS, Asked, Engine, Memory
from harness.rollout import models
from harness.rollout.models import Model

STATES = ("done", "running", "stale", "failed", "planned")
GIB = 2**30
DAY = 86_400.0
PATIENCE = 2 * DAY  # for one cell; where a CPU would take longer, a GPU is missing
LARGEST = 180 * 10**9  # bytes of the largest GPU that can be had
USUAL = 80 * 10**9  # bytes of the GPU that vLLM's cache is reckoned for where none is known
DETAILED = GIB  # from so many bytes on it is worth saying what they are for

Needs = frozenset[str]


# The machine


@dataclass(frozen=True)
class Device:
    name: str
    memory: int | None  # bytes; None where it cannot be known


@dataclass(frozen=True)
class Machine:
    ram: int
    cores: int
    free: int  # bytes of disk where results go
    devices: tuple[Device, ...] = ()

    def kind(self, config: Config) -> str:
        """What the cells of this configuration would compute on."""
        wanted = config.hardware.device
        return wanted if wanted != "auto" else "cuda" if self.devices else "cpu"

    def gpu(self, ranks: int) -> int | None:
        """Bytes that each of so many processes finds on a GPU of its own; None where that cannot be known."""
        sizes = sorted((device.memory for device in self.devices if device.memory is not None), reverse=True)
        return sizes[min(ranks, len(sizes)) - 1] if sizes else None


def this_machine(config: Config) -> Machine:
    folder = config.folder.absolute()
    there = next(path for path in [folder, *folder.parents] if path.exists())
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(ram, os.cpu_count() or 1, shutil.disk_usage(there).free, cuda_devices())


def cuda_devices(driver: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[Device, ...]:
    """By NVIDIA's own tool, else by the mark that its driver leaves."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return tuple(Device("a GPU", None) for _ in driver.glob("*/information"))
    rows = [line.rpartition(",") for line in lines if line.strip()]
    return tuple(Device(name.strip(), int(mib) * 2**20 if mib.strip().isdigit() else None) for name, _, mib in rows)


# The plan


@dataclass(frozen=True)
class Footprint:
    """One model, trained by the methods that ask for the same."""

    model: str
    shape: Shape
    methods: tuple[str, ...]
    memory: Memory
    engine: Engine
    together: int  # sequences of full length that it decodes at once


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

    @property
    def missing(self) -> int:
        return sum(self.states.values()) - self.states.get("done", 0)


def of(config: Config, matrix: Sequence[Cell], machine: Machine) -> Plan:
    kind = machine.kind(config)
    size, needs = cost.width(config, kind), needs_of(config)
    known = {name: models.resolve(name) for name in config.models}
    shapes = {name: shape for name, model in known.items() if (shape := model.shape()) is not None}
    gpu = machine.gpu(config.hardware.ranks) or USUAL
    engines = {
        name: cost.vllm(shape, config, size, kind, gpu) if samples_with_vllm(shape, config) else cost.EMBEDDED
        for name, shape in shapes.items()
    }
    footprints = [
        Footprint(
            name,
            shape,
            tuple(method for method in config.methods if needs[method] == each),
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
        *no_device(config, machine, missing, assumed),
        *no_vllm(config, kind, known.values()),
        *too_large(config, machine, footprints, len(missing)),
        *too_small(config, footprints, size),
        *no_memory(config, machine, shapes),
        *no_room(config, machine, missing, known, shapes, needs),
        *not_prepared(config),
        *(sentence for model in known.values() for sentence in not_usable(model, config)),
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
    )


def needs_of(config: Config) -> dict[str, Needs]:
    """What each method needs that takes memory of its own."""
    table = baselines.table(config.plugins)
    methods = {spec: Method.of(spec, table, config.method_options) for spec in config.methods}
    return {spec: frozenset(method.needs & {"values", "ref_logp"}) for spec, method in methods.items()}


def samples_with_vllm(shape: Shape | None, config: Config) -> bool:
    """As the cells of this configuration would here."""
    return rollout.resolve(config.rollout.engine, config.hardware.device, shape) == "vllm"


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
    cells = sum(
        cost.seconds(shapes[cell.model], config, needs[cell.method], size, speed, engines[cell.model])
        for cell in missing
    )
    return cells + sum(
        cost.generating(shape, asked.responses, config, size, speed, engines[name])
        for name, shape in shapes.items()
        for asked in cost.filtered(config).values()
    )


def by_likeness(missing: Sequence[Cell], progress: Sequence[tuple[Cell, Progress]]) -> float | None:
    """Seconds of the missing cells: each as the mean of the done ones of its model and task, or else of all."""
    done = [(cell.model, cell.task, now.seconds) for cell, now in progress if now.state == "done"]
    if not done:
        return None

    def like(cell: Cell) -> list[float]:
        alike = [spent for model, task, spent in done if (model, task) == (cell.model, cell.task)]
        return alike or [spent for *_, spent in done]

    return sum(mean(like(cell)) for cell in missing)


# What this machine lacks, as sentences


def no_device(config: Config, machine: Machine, missing: Sequence[Cell], assumed: float | None) -> Iterator[str]:
    ranks, here = config.hardware.ranks, len(machine.devices)
    if machine.kind(config) == "cuda" and 0 < here < ranks:
        yield f"the cells ask for {ranks} devices each (hardware.ranks); here {'is' if here == 1 else 'are'} {here}"
    if here:
        return
    if config.hardware.device == "cuda":
        each = f"; the cells ask for {ranks} each (hardware.ranks)" if ranks > 1 else ""
        yield f"there is no CUDA device here, and hardware.device is cuda{each}"
    elif missing and assumed is not None and assumed / len(missing) > PATIENCE:
        yield f"there is no CUDA device here, and on a CPU one cell would take {long(assumed / len(missing))}"


def no_vllm(config: Config, kind: str, known: Iterable[Model]) -> Iterator[str]:
    shapes = [model.shape() for model in known]
    obstacles = [rollout.obstacle(kind, shape) for shape in shapes if samples_with_vllm(shape, config)]
    yield from dict.fromkeys(reason for reason in obstacles if reason)


def too_large(config: Config, machine: Machine, footprints: Sequence[Footprint], cells: int) -> Iterator[str]:
    """On a CPU the ranks of a cell share the memory of the machine; GPUs each has its own."""
    ranks, on_cpu = config.hardware.ranks, machine.kind(config) == "cpu"
    room = machine.ram if on_cpu else machine.gpu(ranks)
    if on_cpu:
        place, where = "one process" if ranks == 1 else f"{ranks} processes", "the memory of this machine is"
    elif ranks == 1:
        place, where = "one process", "the largest GPU here has"
    else:
        place, where = f"each of {ranks} processes", "a GPU here has"
    jobs = min(max(machine.cores // (config.hardware.threads * ranks), 1), cells)
    for each in footprints:
        who, needed = f"{each.model} with {', '.join(each.methods)}", each.memory.peak * (ranks if on_cpu else 1)
        if room is not None and needed > room:
            yield f"{who} needs {gib(needed)} in {place}; {where} {gib(room)}"
        elif room is None and needed > LARGEST:
            device = "the one device" if ranks == 1 else f"each of the {ranks} devices"
            yield f"{who} needs {gib(needed)} on {device} of a cell, more than any GPU has"
        elif on_cpu and jobs * needed > machine.ram:
            fewer = machine.ram // needed
            yield f"{who} needs {gib(needed)}, too much for {jobs} cells side by side; use --jobs {fewer}"


def too_small(config: Config, footprints: Sequence[Footprint], size: int) -> Iterator[str]:
    """vLLM refuses a sequence that its cache cannot hold."""
    tokens = cost.longest(config)
    for name, each in {each.model: each for each in footprints if each.together == 0}.items():
        assert each.engine.cache is not None
        yield (
            f"vLLM's cache for {name} has {gib(each.engine.cache)}, and one sequence of {tokens:,} tokens needs "
            f"{gib(tokens * cost.cached(each.shape, size))}; set hardware.cache_gib"
        )


def no_memory(config: Config, machine: Machine, shapes: Mapping[str, Shape]) -> Iterator[str]:
    """To load models through, where they do not stay."""
    ranks = config.hardware.ranks
    times = f" (each of {ranks} processes reads all of it)" if ranks > 1 else ""
    for name, shape in shapes.items():
        loaded = cost.loaded(shape, config)
        if machine.kind(config) != "cpu" and loaded > machine.ram:
            yield f"{name} is loaded through {gib(loaded)} of this machine's memory{times}, which is {gib(machine.ram)}"


def no_room(
    config: Config,
    machine: Machine,
    missing: Sequence[Cell],
    known: Mapping[str, Model],
    shapes: Mapping[str, Shape],
    needs: Mapping[str, Needs],
) -> Iterator[str]:
    """A checkpoint is deleted only when the next one is on disk, so that there are two for a while."""
    sizes = [cost.on_disk(shapes[c.model], config, needs[c.method]) for c in missing if c.model in shapes]
    downloads = [2 * shapes[name].parameters for name, model in known.items() if name in shapes and to_download(model)]
    wanted = sum(left for _, left in sizes) + max((checkpoint for checkpoint, _ in sizes), default=0) + sum(downloads)
    if wanted > machine.free:
        yield (
            f"{gib(wanted)} of disk for checkpoints and models, where {gib(machine.free)} are free "
            "(checkpoint.save_model=false saves a quarter)"
        )


def not_prepared(config: Config) -> Iterator[str]:
    named = {tasks.build(spec).name for spec in [*config.tasks, *config.eval.tasks]}
    absent = sorted(name for name in named if name in data.SETS and data.find_card(name) is None)
    if absent:
        yield f"problem sets that are not prepared: {', '.join(absent)} (`entrobench data prepare {' '.join(absent)}`)"


def to_download(model: Model) -> bool:
    return model.recipe is None and model.here() is None


def in_transformers(architecture: str) -> bool:
    """By the text of its tables: to import them takes longer than to plan."""
    package = find_spec("transformers")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "models" / "auto"
    tables = (folder / "auto_mappings.py", folder / "configuration_auto.py")
    return any(f'"{architecture}"' in table.read_text() for table in tables)


def not_usable(model: Model, config: Config) -> Iterator[str]:
    shape = model.shape()
    if shape is None:
        yield f"the shape of {model.name}, so that neither memory nor time is known before it is here"
    elif shape.architecture not in ARCHITECTURES:
        if not samples_with_vllm(shape, config):
            allowed = ", ".join(ARCHITECTURES)
            yield f"an engine for {model.name}: the embedded one decodes {allowed}, not {shape.architecture}"
        if not in_transformers(shape.architecture):
            yield (
                f"{model.name} cannot be loaded: transformers has no {shape.architecture}, and code that comes with a "
                "model is not run"
            )
    if to_download(model):
        size = "" if shape is None else f", about {gib(2 * shape.parameters)}"
        yield f"{model.name} is not on this machine; the first run downloads {model.path}{size}"


# Showing


def show(console: Console, plan: Plan) -> None:
    config = plan.config
    console.print(f"matrix {config.name}: {sum(plan.states.values())} cells in {config.folder}")
    table = Table("state", "cells", box=None, header_style="dim")
    for state, number in plan.states.items():
        table.add_row(state, str(number))
    console.print(table)
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
        yield (
            f"time: {plan.missing} cells to run, {long(plan.assumed)} of {of} if every response is as long as "
            f"allowed; assumed, not measured ({speed.flops:.2g} operations and {speed.bandwidth:.2g} bytes a second)"
        )
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


def parts(bytes_of: Mapping[str, int]) -> str:
    """The largest first; what rounds to nothing is left out."""
    ordered = sorted(bytes_of.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {number / GIB:.1f}" for name, number in ordered if number >= GIB / 20)


def gib(number: int) -> str:
    return f"{number / GIB:,.1f} GiB" if number >= GIB / 10 else f"{number / 2**20:,.0f} MiB"


def short(number: int) -> str:
    for factor, name in ((10**9, "billion"), (10**6, "million")):
        if number >= factor:
            return f"{number / factor:.3g} {name}"
    return f"{number:,}"


def long(seconds: float) -> str:
    return f"about {seconds / DAY:,.0f} days" if seconds > 3 * DAY else f"about {duration(seconds)}"
