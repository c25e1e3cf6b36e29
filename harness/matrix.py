"""From axes to cells: which cells a configuration means, who each of them is, and how far each has come."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import baselines
import tasks
from harness import composition
from harness.base import files, identities, registry
from harness.base.addresses import visible_address
from harness.base.errors import Damaged, UserError, nearest
from harness.cells import provenance
from harness.cells.spec import FILE as SPEC
from harness.cells.spec import CellSpec, key_in
from harness.cells.state import Progress
from harness.composition import Method
from harness.config import Config, told, variants
from harness.dist import devices
from harness.method import Composition
from harness.rollout import choice, models
from harness.rollout.models import Model
from tasks import check_split, evaluation_name

MARKER = "matrix.json"
HALF_MARKER = re.compile(rf"\.{re.escape(MARKER)}\.\d+")  # while a process writes it, or left by one that was killed
AXES = ("method", "task", "model")
LONGEST_NAME = 180  # characters of a cell's folder before its key; options may hold whole sentences


class Shared:
    """Makes what the cells of a matrix have in common, each once: there may be thousands of them. A matrix that
    is made later makes all of it anew, since plugins and the files of models may have been edited."""

    def __init__(self, config: Config) -> None:
        self.methods, self.tasks = baselines.table(config.plugins), tasks.task_table(config.plugins)
        self.method = cache(lambda spec: Method.of(spec, self.methods, config.method_options))
        self.task = cache(lambda spec: registry.build("task", self.tasks, spec))
        self.method_identity = cache(lambda spec: self.method(spec).identity())
        self.task_identity = cache(lambda spec: identities.of(self.task(spec)))
        self.evaluation_name = cache(lambda spec: evaluation_name(self.task(spec)))
        self.evaluation_identity = cache(self.evaluated_as)
        self.made_of = cache(lambda spec: composition.composed(spec, self.methods))
        self.model = cache(models.resolve)
        self.model_identity = cache(lambda name: self.model(name).identity())
        self.components = cache(self.classes)
        self.known: dict[tuple[str, str], Settled] = {}

    def classes(self, method: str, tasks: tuple[str, ...]) -> dict[str, type]:
        """Returns the classes of a method and of tasks, by their names."""
        built = [*self.method(method).components, *map(self.task, tasks)]
        return provenance.named(built, composition.components(self.methods), self.tasks)

    def evaluated_as(self, spec: str) -> dict[str, Any]:
        """Return the identity of an evaluation, whose records are found by its name."""
        name, identity = self.evaluation_name(spec), self.task_identity(spec)
        # Without options the name adds nothing, and the keys of such cells stay as they were.
        return identity if name == self.task(spec).name else identity | {"name": name}

    def settled(self, config: Config, model: str) -> Settled:
        """Returns one setting of the matrix as it is for a model on this machine."""
        key = told(config.setting), model
        if key not in self.known:
            self.known[key] = Settled.of(config, self.model(model))
        return self.known[key]


@dataclass(frozen=True)
class Settled:
    """A configuration with the device, the compute type and the engine that `auto` means for a model on this machine:
    they decide which responses are drawn, so they belong to who a cell is."""

    config: Config

    @classmethod
    def of(cls, config: Config, model: Model) -> Settled:
        device = devices.kind(config.hardware.device)
        dtype = config.train.dtype
        if dtype == "auto":
            dtype = "bfloat16" if device == "cuda" else "float32"
        engine = choice.resolve_engine(config.rollout.engine, config.hardware.device, model.shape())
        settled = dataclasses.replace(
            config,
            train=dataclasses.replace(config.train, dtype=dtype),
            rollout=dataclasses.replace(config.rollout, engine=engine),
            hardware=dataclasses.replace(config.hardware, device=device),
        )
        return cls(settled)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Returns the part of who a cell is that methods, tasks, models and seeds share."""
        config, correction = self.config, self.config.correction
        parts = {part: dataclasses.asdict(getattr(config, part)) for part in ("train", "rollout", "eval", "stop")}
        if config.train.dtype == "float32":
            parts["train"]["dtype"] = "auto"  # which float32 is called here, however it was asked for
        return {
            **parts,
            "verify": {"limit_s": config.verify.limit_s},
            # Where it is off, its bounds define nothing.
            **({} if correction.kind == "off" else {"correction": dataclasses.asdict(correction)}),
            **({} if config.hardware.device == "cpu" else {"device": config.hardware.device}),
        }

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The configuration as plain values, with what may be secret hidden: many may read the files of a cell."""
        settings = dataclasses.asdict(self.config)
        if self.config.tracking.uri is not None:
            settings["tracking"]["uri"] = visible_address(self.config.tracking.uri)
        return settings


@dataclass(frozen=True)
class Cell:
    """One method on one task with one model and one seed."""

    config: Config
    method: str
    task: str
    model: str
    seed: int
    shared: Shared = field(repr=False, compare=False)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Returns all that defines the result, which paths, launchers, trackers and file names do not."""
        shared = self.shared
        return {
            "method": shared.method_identity(self.method),
            "task": shared.task_identity(self.task),
            "evaluation_tasks": [shared.evaluation_identity(spec) for spec in self.evaluation_tasks],
            "model": shared.model_identity(self.model),
            "seed": self.seed,
            **shared.settled(self.config, self.model).identity,
        }

    @property
    def settled(self) -> Config:
        """Returns the configuration with what `auto` means for this model on this machine."""
        return self.shared.settled(self.config, self.model).config

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
        varied += [told(self.config.setting)] if self.config.axes else []
        return " ".join([*varied, f"seed {self.seed}"])

    @cached_property
    def folder(self) -> Path:
        name = re.sub(r"[^\w.+-]+", "_", "-".join([self.method, self.task, Path(self.model).name]))
        return self.config.folder / f"{name[:LONGEST_NAME]}-s{self.seed}-{self.key}"

    @property
    def spec(self) -> CellSpec:
        """All that its process needs to know."""
        axes = {axis: getattr(self, axis) for axis in ("method", "task", "model", "seed")}
        settings = self.shared.settled(self.config, self.model).plain
        made_of = self.shared.made_of(self.method)
        return CellSpec(self.key, self.config.name, **axes, identity=self.identity, settings=settings, made_of=made_of)

    @property
    def components(self) -> dict[str, type]:
        """Returns the classes of its method and its tasks, by their names."""
        return self.shared.components(self.method, (self.task, *self.config.eval.tasks))

    @property
    def sources(self) -> dict[str, str]:
        """Returns the hashes of its components' source, as it is on disk now."""
        return {name: provenance.digest(cls) for name, cls in self.components.items()}

    def progress(self) -> Progress:
        """Return how far the cell is; what another cell has left in its folder is a failure."""
        found, other = Progress.read(self.folder, self.sources), key_in(self.folder)
        if found.state == "planned" or other in (None, self.key):
            return found
        return Progress("failed", str(Damaged(self.folder / SPEC, f"it is of the cell {other}")))


def cells(config: Config) -> list[Cell]:
    """Every cell of the matrix, checked; seeds outermost, so that an unfinished matrix compares methods fairly."""
    shared, settings = Shared(config), variants(config)
    for spec in [*config.methods, config.baseline]:
        method = shared.method(spec)
        for setting in settings:
            if setting.train.group < method.min_group:
                raise UserError(
                    f"train.group is {setting.train.group}, but method {spec!r} compares the responses to one prompt "
                    f"(allowed: {method.min_group} and more)"
                )
            if setting.correction.kind != "off" and setting.correction.level == "token":
                whose = f"correction.kind={setting.correction.kind}"
                composition.check_token_weights(whose, method.base, method.objective, "correction.level=sequence")
    known = composition.components(shared.methods)
    for name in config.method_options:
        if name not in known:
            entry = shared.methods.get(name)
            why = f"stands for {entry.spec}" if isinstance(entry, Composition) else "is no objective and no control"
            raise UserError(f"method_options names {name!r}, which {why}; {nearest(name, known)}")
    for spec in config.tasks:
        check_split(shared.task(spec), "train", "the split to train on")
    for spec in config.eval.tasks or config.tasks:
        check_split(shared.task(spec), config.eval.split, "eval.split")
    evaluated: dict[str, str] = {}  # specifications by the names of their evaluations
    for spec in config.eval.tasks:
        name = shared.evaluation_name(spec)
        if name in evaluated:
            raise UserError(
                f"eval.tasks {evaluated[name]!r} and {spec!r} are both {name!r}, and one would overwrite the other; "
                "name one of them"
            )
        evaluated[name] = spec
    evaluated = evaluated or {shared.evaluation_name(spec): spec for spec in config.tasks}
    for name in config.eval.by_task:
        if name not in evaluated:
            raise UserError(f"eval.by_task names {name!r}, which is not evaluated; {nearest(name, evaluated)}")
    if config.baseline not in config.methods:
        raise UserError(f"baseline is {config.baseline!r}, which is not among methods ({', '.join(config.methods)})")
    axes = itertools.product(config.seeds, settings, config.tasks, config.models, config.methods)
    matrix = [Cell(setting, method, task, model, seed, shared) for seed, setting, task, model, method in axes]
    seen: dict[str, Cell] = {}
    for cell in matrix:
        if cell.key in seen:
            pairs = ((f"{axis}s", getattr(seen[cell.key], axis), getattr(cell, axis)) for axis in AXES)
            settings_told = ("axes", told(seen[cell.key].config.setting), told(cell.config.setting))
            axis, one, other = next(pair for pair in (*pairs, settings_told) if pair[1] != pair[2])
            raise UserError(f"{axis} {one!r} and {other!r} are the same; name one of them")
        seen[cell.key] = cell
    return matrix


def leftovers(config: Config, matrix: list[Cell]) -> tuple[list[Path], list[Path]]:
    """Returns the folders of cells that are not of this configuration, and those of attempts that were set aside."""
    ours = {cell.folder for cell in matrix}
    every = sorted(path.parent for path in config.folder.glob("*/config.yaml") if not path.parent.is_symlink())
    attempts = [folder for folder in every if provenance.ASIDE in folder.name]
    return [folder for folder in every if folder not in ours and folder not in attempts], attempts


def claim(config: Config) -> None:
    """Makes sure that the results folder is this matrix's own, and marks it."""
    check_owner(config)
    if named_in(config.folder / MARKER) is None:
        files.write_json(config.folder / MARKER, {"matrix": config.name})


def check_owner(config: Config) -> None:
    """Refuse a results folder that is another's.

    Its files are listed before the look at the marker: another runner, which may begin now, makes none before that.
    """
    folder, marker = config.folder, config.folder / MARKER
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    others = [name for name in names if name != MARKER and not HALF_MARKER.fullmatch(name)]
    if marker.exists():
        owner = named_in(marker) or recorded_in(folder)
        if owner is None:
            raise Damaged(marker, f'it must be {{"matrix": "{config.name}"}} if the folder is of this matrix')
        if owner != config.name:
            raise UserError(
                f"{folder} belongs to the matrix {owner!r}, not {config.name!r}; choose another name= or results="
            )
    elif others:
        raise UserError(f"{folder} holds files that entrobench did not make; choose another name= or results=")


def named_in(marker: Path) -> str | None:
    """Returns the matrix that a marker names; None where there is none, or none that can be read."""
    try:
        found = files.read_json(marker)
    except (FileNotFoundError, Damaged):
        return None
    return found.get("matrix") if isinstance(found, dict) else None


def recorded_in(folder: Path) -> str | None:
    """Returns the matrix that the cells in a folder are of by their own records."""
    for record in folder.glob("*/config.yaml"):
        with contextlib.suppress(Damaged):
            return CellSpec.read(record.parent).matrix
    return None
