"""Says what this machine lacks for a matrix."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tasks
from harness.base.shape import ARCHITECTURES, Shape
from harness.config import Config
from harness.data import cache, sets
from harness.matrix import Cell
from harness.plan import cost
from harness.plan.cost import Footprint, Needs
from harness.plan.machine import Machine, samples_with_vllm
from harness.rollout import choice
from harness.rollout.models import Model
from harness.terminal.units import DAY, gib, long

PATIENCE = 2 * DAY  # for one cell; where a CPU would take longer, a GPU is missing
LARGEST = 180 * 10**9  # bytes of the largest GPU that can be had


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
    obstacles = [choice.vllm_obstacle(kind, shape) for shape in shapes if samples_with_vllm(shape, config)]
    yield from dict.fromkeys(reason for reason in obstacles if reason)


def too_large(
    config: Config, machine: Machine, footprints: Sequence[Footprint], size: int, cells: int
) -> Iterator[str]:
    """On a CPU the ranks of a cell share the memory of the machine; each GPU has its own."""
    ranks, on_cpu = config.hardware.ranks, machine.kind(config) == "cpu"
    room = machine.ram if on_cpu else machine.gpu(config.hardware)
    if on_cpu:
        place, where = "one process" if ranks == 1 else f"{ranks} processes", "the memory of this machine is"
    elif ranks == 1:
        place, where = "one process", "the largest GPU here has"
    else:
        place, where = f"each of {ranks} processes", "a GPU here has"
    jobs = min(machine.at_once(config), cells)
    for each in footprints:
        who = f"{each.model} with {', '.join(each.methods)}"
        needed = ranks * (each.memory.peak + each.memory.beside) if on_cpu else each.memory.peak
        if room is not None and needed > room:
            yield f"{who} needs {gib(needed)} in {place}; {where} {gib(room)}{helping(each, config, size, room)}"
        elif room is None and needed > LARGEST:
            device = "the one device" if ranks == 1 else f"each of the {ranks} devices"
            more = helping(each, config, size, LARGEST)
            yield f"{who} needs {gib(needed)} on {device} of a cell, more than any GPU has{more}"
        elif on_cpu and jobs * needed > machine.ram:
            fewer = machine.ram // needed
            yield f"{who} needs {gib(needed)}, too much for {jobs} cells side by side; use --jobs {fewer}"


def helping(each: Footprint, config: Config, size: int, room: int) -> str:
    """Returns the end of a sentence: what a cell needs with the settings that make it smaller, each by itself, if it
    fits then."""
    hardware = config.hardware
    settings: dict[str, dict[str, Any]] = {
        "hardware.recompute=true": {"recompute": True},
        f"hardware.micro_tokens={cost.longest(config)}": {"micro_tokens": cost.longest(config)},
        f"hardware.ranks={2 * hardware.ranks}": {"ranks": 2 * hardware.ranks},
    }
    found = []
    for name, changed in settings.items():
        smaller = dataclasses.replace(config, hardware=dataclasses.replace(hardware, **changed))
        peak = cost.memory(each.shape, smaller, each.needs, size, each.engine).peak
        if peak <= room and changed.items() - vars(hardware).items():
            found.append(f"{name} ({gib(peak)})")
    return f"; it fits with {' or '.join(found)}" if found else ""


def too_small(config: Config, footprints: Sequence[Footprint], size: int) -> Iterator[str]:
    """vLLM refuses a sequence that its cache cannot hold."""
    tokens = cost.longest(config)
    for name, each in {each.model: each for each in footprints if each.together == 0}.items():
        assert each.engine.cache is not None
        yield (
            f"vLLM's cache for {name} has {gib(each.engine.cache)}, and one sequence of {tokens:,} tokens needs "
            f"{gib(tokens * cost.cached(each.shape, size))}; set hardware.cache_gib"
        )


def no_memory(config: Config, machine: Machine, footprints: Sequence[Footprint]) -> Iterator[str]:
    """Looks at the machine's own memory, where devices have theirs."""
    what = "AdamW, and for a checkpoint" if config.hardware.offload else "a checkpoint"
    for each in footprints:
        who, needed = f"{each.model} with {', '.join(each.methods)}", config.hardware.ranks * each.memory.beside
        if machine.kind(config) != "cpu" and needed > machine.ram:
            yield (
                f"{who} needs {gib(needed)} of this machine's memory for {what} on its way to disk; it has "
                f"{gib(machine.ram)}"
            )


def no_room(
    config: Config,
    machine: Machine,
    missing: Sequence[Cell],
    known: Mapping[str, Model],
    shapes: Mapping[str, Shape],
    needs: Mapping[str, Needs],
) -> Iterator[str]:
    """While a cell trains it keeps two checkpoints, and a third one is written before the first is deleted."""
    sizes = [cost.on_disk(shapes[c.model], config, needs[c.method]) for c in missing if c.model in shapes]
    downloads = [2 * shapes[name].parameters for name, model in known.items() if name in shapes and to_download(model)]
    wanted = sum(left for _, left in sizes) + 2 * max((checkpoint for checkpoint, _ in sizes), default=0)
    wanted += sum(downloads)
    if wanted > machine.free:
        yield (
            f"{gib(wanted)} of disk for checkpoints and models, where {gib(machine.free)} are free "
            "(checkpoint.save_model=false saves a quarter)"
        )


def not_prepared(config: Config) -> Iterator[str]:
    named = {tasks.build_task(spec, config.plugins).name for spec in [*config.tasks, *config.eval.tasks]}
    absent = sorted(name for name in named if name in sets.SETS and cache.find_card(name) is None)
    if absent:
        yield f"problem sets that are not prepared: {', '.join(absent)} (`entrobench data prepare {' '.join(absent)}`)"


def to_download(model: Model) -> bool:
    return model.recipe is None and model.present_folder() is None


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
        yield f"{model.name} is not on this machine; the first run downloads {model.address}{size}"
