"""The reasons why a machine cannot run a matrix, each in one sentence."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any

import tasks
from harness.base.devices import bfloat16_obstacle
from harness.base.errors import UserError
from harness.base.shape import ARCHITECTURES
from harness.base.units import GIB, gib, plural
from harness.config import ADAMW8BIT, OWN, Config, replaced, value_at
from harness.config.checks import validate
from harness.launch.machine import Machine
from harness.matrix import Cell
from harness.methods.refusals import trainer_obstacle
from harness.plan import cost
from harness.plan.cost import Footprint, Needs
from harness.rollout import choice
from harness.rollout.models import Model
from tasks.data import cache, sets

CACHES = (256, 128, 64, 32, 16, 8)  # responses of full length for which a cache may be offered, the largest first


@dataclass(frozen=True)
class Obstacles:
    """A matrix on a machine that may lack something for it."""

    config: Config  # settled; its engine is that of the first model
    machine: Machine
    missing: Sequence[Cell]
    models: Mapping[str, Model]  # by the name in the configuration
    engines: Mapping[str, str]  # the chosen engine, by model
    needs: Mapping[str, Needs]  # by method
    footprints: Sequence[Footprint]
    at_once: int  # cells side by side on this machine, at most

    def sentences(self) -> Iterator[str]:
        yield from self.no_device()
        yield from self.no_vllm()
        if reason := trainer_obstacle(self.config):
            yield reason
        if self.config.train.backend == OWN:  # the memory of other trainers is not estimated
            yield from self.too_large()
            yield from self.cache_too_small()
            yield from self.no_main_memory()
        yield from self.no_disk()
        yield from self.not_prepared()
        for name, model in self.models.items():
            yield from self.not_usable(model, self.engines[name])

    @property
    def kind(self) -> str:
        return self.config.hardware.device

    def no_device(self) -> Iterator[str]:
        ranks, here = self.config.hardware.ranks, len(self.machine.devices)
        if self.kind != "cuda":
            return
        if 0 < here < ranks:
            yield f"each cell needs {ranks} devices (hardware.ranks), but this machine has {here}"
        if not here:
            number = f"; each cell needs {ranks} (hardware.ranks)" if ranks > 1 else ""
            yield f"hardware.device is cuda, but this machine has no CUDA device{number}"
        if self.config.train.dtype == "bfloat16" and (reason := bfloat16_obstacle(self.machine.devices)):
            yield reason

    def no_vllm(self) -> Iterator[str]:
        with_vllm = [model for name, model in self.models.items() if self.engines[name] == "vllm"]
        reasons = [choice.vllm_obstacle(self.kind, model.shape()) for model in with_vllm]
        yield from dict.fromkeys(filter(None, reasons))

    def too_large(self) -> Iterator[str]:
        """On a CPU the ranks of a cell share the memory of the machine; each GPU has its own."""
        ranks, on_cpu = self.config.hardware.ranks, self.kind == "cpu"
        place = f"each of {ranks} processes" if ranks > 1 and not on_cpu else plural(ranks, "process", "processes")
        if on_cpu:
            where = "this machine has"
        elif not self.machine.devices:
            where = "a GPU is assumed (--gpu) to have"
        else:
            where = "the largest GPU has" if ranks == 1 else "a GPU has"
        jobs = min(self.at_once, len(self.missing))
        for footprint in self.footprints:
            who, needed = footprint_label(footprint), footprint.in_one_memory
            room = self.machine.ram if on_cpu else footprint.gpu
            if needed > room:
                fits = [f"{' and '.join(fit.settings)} ({gib(fit.needed)})" for fit in fits_of(footprint, room)]
                remedy = f"it fits with {', or with '.join(fits)}" if fits else "no setting makes it fit"
                yield f"{who} needs {gib(needed)} in {place}; {where} {gib(room)}; {remedy}"
            elif on_cpu and jobs * needed > self.machine.ram:
                fewer = self.machine.ram // needed
                yield f"{who} needs {gib(needed)}, too much for {jobs} cells side by side; use --jobs {fewer}"

    def cache_too_small(self) -> Iterator[str]:
        """vLLM refuses a sequence that its cache cannot hold."""
        footprint_of = {footprint.model: footprint for footprint in self.footprints if footprint.together == 0}
        for name, footprint in footprint_of.items():
            tokens = cost.longest_sequence(footprint.config)
            assert footprint.engine.cache is not None
            needed = tokens * cost.cache_bytes_per_token(footprint.shape, footprint.size)
            yield (
                f"vLLM's cache for {name} has {gib(footprint.engine.cache)}, but one sequence of {tokens:,} tokens "
                f"needs {gib(needed)}; set hardware.cache_gib"
            )

    def no_main_memory(self) -> Iterator[str]:
        """Look at the machine's main memory if devices have their own."""
        if self.kind == "cpu":
            return
        what = "the program, AdamW and a checkpoint" if self.config.hardware.offload else "the program and a checkpoint"
        for footprint in self.footprints:
            who, needed = footprint_label(footprint), self.config.hardware.ranks * footprint.memory.main_memory
            if needed > self.machine.ram:
                yield (
                    f"{who} needs {gib(needed)} of this machine's memory for {what} on its way to disk, but it has "
                    f"{gib(self.machine.ram)}"
                )

    def no_disk(self) -> Iterator[str]:
        """While a cell trains it writes one more checkpoint than it keeps before the oldest is deleted."""
        shape_of = {footprint.model: footprint.shape for footprint in self.footprints}
        wanted = largest_checkpoint = 0
        for cell in self.missing:
            if cell.model in shape_of:
                checkpoint, final = cost.disk_bytes(shape_of[cell.model], self.config, self.needs[cell.method])
                wanted += final
                largest_checkpoint = max(largest_checkpoint, checkpoint)
        side_by_side = min(self.at_once, len(self.missing))
        settings = self.config.checkpoint
        # A last one that is kept is part of what a finished cell leaves.
        while_training = settings.keep + (not settings.keep_last)
        wanted += while_training * largest_checkpoint * side_by_side
        for name, model in self.models.items():
            if name in shape_of and must_download(model):
                wanted += 2 * shape_of[name].parameters
        if wanted > self.machine.free:
            yield (
                f"checkpoints and models need {gib(wanted)} of disk, but {gib(self.machine.free)} are free "
                "(checkpoint.keep=1 and checkpoint.save_model=false need less)"
            )

    def not_prepared(self) -> Iterator[str]:
        specs = [*self.config.tasks, *self.config.eval.tasks]
        names = {tasks.build_task(spec, self.config.plugins).name for spec in specs}
        if absent := sorted(name for name in names if name in sets.SETS and cache.find_card(name) is None):
            command = f"entrobench data prepare {' '.join(absent)}"
            yield f"problem sets are not prepared: {', '.join(absent)} (`{command}`)"

    def not_usable(self, model: Model, engine: str) -> Iterator[str]:
        if reason := choice.context_obstacle(self.config, model):
            yield reason
        shape = model.shape()
        if shape is None:
            why = "until it is downloaded" if must_download(model) else "from its config.json"
            yield f"the shape of {model.name} is unknown {why}, and with it the memory"
        elif shape.architecture not in ARCHITECTURES:
            if engine != "vllm":
                allowed = ", ".join(ARCHITECTURES)
                yield f"no engine for {model.name}: the embedded one decodes {allowed}, not {shape.architecture}"
            if not in_transformers(shape.architecture):
                yield (
                    f"{model.name} cannot be loaded: transformers has no {shape.architecture}, and code that comes "
                    "with a model is not run"
                )
        if must_download(model):
            size = "" if shape is None else f", about {gib(2 * shape.parameters)}"
            address = model.origin_model.address
            yield f"{model.name} is not on this machine; the first run downloads {address}{size}"


@dataclass(frozen=True)
class Fit:
    """Changes of settings with which a cell fits, and the bytes that it needs then."""

    changes: Mapping[str, Any]
    needed: int

    @property
    def settings(self) -> list[str]:
        return [f"{key}={str(value).lower()}" for key, value in self.changes.items()]


def fits_of(footprint: Footprint, room: int) -> list[Fit]:
    """Return the fewest changes that together make a cell fit into a number of bytes; more devices only if need be."""
    config, longest = footprint.config, cost.longest_sequence(footprint.config)
    sequence = longest * cost.cache_bytes_per_token(footprint.shape, footprint.size)
    options: dict[str, list[Any]] = {
        "hardware.recompute": [True],
        "hardware.micro_tokens": [longest],
        "hardware.cache_gib": [ceil(10 * responses * sequence / GIB) / 10 for responses in CACHES],
    }
    further: list[dict[str, Any]] = [{}]
    if config.hardware.device == "cuda":
        # The optimizer is the last, since it alone changes numbers, and saves less than offloading does.
        options |= {"hardware.offload": [True], "train.optimizer": [ADAMW8BIT]}
        further.append({"hardware.ranks": 2 * config.hardware.ranks})
    new = [key for key, values in options.items() if value_at(config, key) not in values]
    for more in further:
        for number in range(len(new) + 1):
            fits = []
            for keys in itertools.combinations(new, number):
                for values in itertools.product(*[options[key] for key in keys]):
                    changes = dict(zip(keys, values, strict=True)) | more
                    needed = needed_with(footprint, changes)
                    if needed is not None and needed <= room:
                        fits.append(Fit(changes, needed))
                        break  # a smaller cache would fit, too
            if fits:
                return fits
    return []


def needed_with(footprint: Footprint, changes: Mapping[str, Any]) -> int | None:
    """Return the bytes that are needed in one memory with other settings; None where these contradict each other."""
    config = footprint.config
    for key, value in changes.items():
        config = replaced(config, key, value)
    try:
        validate(config)
    except UserError:
        return None
    return dataclasses.replace(footprint, config=config).in_one_memory


def footprint_label(footprint: Footprint) -> str:
    return f"{footprint.model} with {', '.join(footprint.methods)}"


def must_download(model: Model) -> bool:
    origin = model.origin_model
    return origin.recipe is None and origin.present_folder() is None


def in_transformers(architecture: str) -> bool:
    """Return whether transformers has an architecture, by the text of its tables: importing it takes longer than
    planning."""
    package = find_spec("transformers")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "models" / "auto"
    tables = (folder / "auto_mappings.py", folder / "configuration_auto.py")
    return any(f'"{architecture}"' in table.read_text("utf-8") for table in tables)
