"""From axes to cells: which cells a configuration means, who each of them is, and how far each has come."""

from __future__ import annotations

import dataclasses
import itertools
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import baselines
import tasks
from harness.base import files, identities
from harness.base.errors import UserError, nearest
from harness.config import Config
from harness.method import Method
from harness.record.spec import CellSpec
from harness.record.state import Progress
from harness.rollout import choice, models
from tasks import check_split

MARKER = "matrix.json"
LONGEST_NAME = 180  # characters of a cell's folder before its key; options may hold whole sentences


@dataclass(frozen=True)
class Cell:
    """One method on one task with one model and one seed."""

    config: Config
    method: str
    task: str
    model: str
    seed: int

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Returns all that defines the result, which paths, launchers, trackers and file names do not."""
        table, correction = baselines.table(self.config.plugins), self.config.correction
        return {
            "method": Method.of(self.method, table, self.config.method_options).identity(),
            "task": identities.of(tasks.build(self.task, self.config.plugins)),
            "evaluation_tasks": [
                identities.of(tasks.build(spec, self.config.plugins)) for spec in self.evaluation_tasks
            ],
            "model": models.resolve(self.model).identity(),
            "seed": self.seed,
            **{part: dataclasses.asdict(getattr(self.settled, part)) for part in ("train", "rollout", "eval")},
            "verify": {"limit_s": self.config.verify.limit_s},
            # Where it is off, its bounds define nothing.
            **({} if correction.kind == "off" else {"correction": dataclasses.asdict(correction)}),
        }

    @cached_property
    def settled(self) -> Config:
        """The configuration with the engine that `auto` means for this model on this machine: it decides which
        responses are drawn, so it belongs to who the cell is."""
        given = self.config.rollout
        shape = models.resolve(self.model).shape()
        engine = choice.resolve(given.engine, self.config.hardware.device, shape)
        return dataclasses.replace(self.config, rollout=dataclasses.replace(given, engine=engine))

    @cached_property
    def key(self) -> str:
        return identities.key(self.identity)

    @property
    def evaluation_tasks(self) -> list[str]:
        return self.config.eval.tasks or [self.task]

    @property
    def label(self) -> str:
        varied = [self.method]
        varied += [self.task] if len(self.config.tasks) > 1 else []
        varied += [self.model] if len(self.config.models) > 1 else []
        return " ".join([*varied, f"seed {self.seed}"])

    @property
    def folder(self) -> Path:
        name = re.sub(r"[^\w.+-]+", "_", "-".join([self.method, self.task, Path(self.model).name]))
        return self.config.folder / f"{name[:LONGEST_NAME]}-s{self.seed}-{self.key}"

    @property
    def spec(self) -> CellSpec:
        """All that its process needs to know."""
        axes = {axis: getattr(self, axis) for axis in ("method", "task", "model", "seed")}
        settings = dataclasses.asdict(self.settled)
        return CellSpec(self.key, self.config.name, **axes, identity=self.identity, settings=settings)

    def progress(self) -> Progress:
        return Progress.read(self.folder)


def cells(config: Config) -> list[Cell]:
    """Every cell of the matrix, checked; seeds outermost, so that an unfinished matrix compares methods fairly."""
    table = baselines.table(config.plugins)
    for spec in [*config.methods, config.baseline]:
        method = Method.of(spec, table, config.method_options)
        if config.train.group < method.min_group:
            raise UserError(
                f"train.group is {config.train.group}, but method {spec!r} compares the responses to one prompt "
                f"(allowed: {method.min_group} and more)"
            )
    for name in config.method_options:
        if name not in table:
            raise UserError(f"method_options names an unknown method {name!r}")
    for spec in config.tasks:
        check_split(tasks.build(spec, config.plugins), "train", "the split to train on")
    for spec in config.eval.tasks or config.tasks:
        check_split(tasks.build(spec, config.plugins), config.eval.split, "eval.split")
    evaluated = {tasks.build(spec, config.plugins).name for spec in config.eval.tasks or config.tasks}
    for name in config.eval.by_task:
        if name not in evaluated:
            raise UserError(f"eval.by_task names {name!r}, which is not evaluated; {nearest(name, evaluated)}")
    if config.baseline not in config.methods:
        raise UserError(f"baseline is {config.baseline!r}, which is not among methods ({', '.join(config.methods)})")
    axes = itertools.product(config.seeds, config.tasks, config.models, config.methods)
    matrix = [Cell(config, method, task, model, seed) for seed, task, model, method in axes]
    seen: dict[str, Cell] = {}
    for cell in matrix:
        if cell.key in seen:
            raise UserError(f"methods {seen[cell.key].method!r} and {cell.method!r} are the same; name one of them")
        seen[cell.key] = cell
    return matrix


def claim(config: Config) -> None:
    """Make sure that the results folder is this matrix's own, and mark it."""
    folder, marker = config.folder, config.folder / MARKER
    if marker.exists():
        owner = files.read_json(marker)["matrix"]
        if owner != config.name:
            raise UserError(
                f"{folder} belongs to the matrix {owner!r}, not {config.name!r}; choose another name= or results="
            )
    elif folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} holds files that entrobench did not make; choose another name= or results=")
    else:
        files.write_json(marker, {"matrix": config.name})
