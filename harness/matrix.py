"""From axes to cells: the cells of a configuration, the identity of each, and its progress."""

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
from harness.base import devices, files, identities, matmul
from harness.base.addresses import visible_address
from harness.base.errors import Damaged, UserError, nearest, shown
from harness.base.shape import Shape
from harness.base.task import Graded, Task
from harness.base.units import plural
from harness.cells.provenance import component_classes
from harness.cells.source_digest import source_digest
from harness.cells.spec import FILE as SPEC
from harness.cells.spec import MARKER, CellKey, CellSpec, changed_parts, id_in, is_adopted, training_key
from harness.cells.state import Progress
from harness.config import (
    CANDIDATES,
    CHOICE,
    MICRO_BATCH,
    TRL,
    Config,
    Eval,
    check_adapters_fit,
    setting_label,
    variants,
    without_k,
)
from harness.methods import composition
from harness.methods.composition import Method
from harness.methods.refusals import check_backend
from harness.methods.verbs import Composition
from harness.rollout import choice, models
from tasks import check_split, evaluation_name
from tasks.problems import OwnProblems

LR_AXIS = "train.lr"
# Bytes of a cell's folder before its seed and key: options may hold whole sentences, and file names have at most
# 255 bytes.
LONGEST_NAME = 180
REPORT, DYNAMICS = "report", "dynamics"  # folders that two commands make next to the cells
UNCLAIMED = (REPORT, DYNAMICS, CHOICE, CANDIDATES)  # what may be in a matrix's folder before its first cell
NARROW = 512  # hidden size of the widest model that is made here


class Shared:
    """Methods, tasks and models of a matrix, each built once: a matrix may have thousands of cells.

    Each matrix builds its own, since plugins and the files of models may be edited in between.
    """

    def __init__(self, config: Config) -> None:
        self.methods, self.tasks = baselines.table(config.plugins), tasks.task_table(config.plugins)
        self.method = cache(lambda spec: Method.of(spec, self.methods, config.method_options))
        self.task = cache(lambda spec: tasks.task_in(self.tasks, spec))
        self.method_identity = cache(lambda spec, default_lr: self.method(spec).identity(default_lr))
        self.task_identity = cache(lambda spec: identities.component_identity(self.task(spec)))
        self.evaluation_name = cache(lambda spec: evaluation_name(self.task(spec)))
        self.evaluation_identity = cache(self.evaluated_as)
        self.made_of = cache(lambda spec: composition.composed(spec, self.methods))
        self.model = cache(models.resolve)
        self.model_identity = cache(lambda name: self.model(name).identity())
        self.version = cache(self.version_of)
        self.known: dict[tuple[str, str], Settled] = {}

    def version_of(
        self, method: str | None, task: str, evaluated: tuple[str, ...], split: str
    ) -> dict[str, dict[str, str]]:
        """Return the digests of a cell's code, and of the problems of its tasks; without a method, of tasks alone."""
        components = () if method is None else self.method(method).components
        built = [*components, *map(self.task, {task, *evaluated})]
        classes = component_classes(built, composition.method_classes(self.methods), self.tasks)
        sources = {name: source_digest(cls) for name, cls in classes.items()}
        problems = tasks.problem_digests(task, evaluated, split, self.task)
        return {"source": sources, "problems": problems} if problems else {"source": sources}

    def evaluated_as(self, spec: str) -> dict[str, Any]:
        """Return the identity of an evaluation; its records are found by its name."""
        name, identity = self.evaluation_name(spec), self.task_identity(spec)
        # Without options the name adds nothing, and the ids of such cells stay as they were.
        if name == self.task(spec).name:
            return identity
        return identity | {"name": name}

    def settled(self, config: Config, model: str) -> Settled:
        """Return a setting of the matrix with `auto` resolved for a model on this machine."""
        key = setting_label(config.setting), model
        if key not in self.known:
            shape = self.model(model).shape()
            if config.train.lora is not None and shape is not None:
                check_adapters_fit(config.train.lora, shape.architecture, shape)
            settled = settle_auto(config, shape)
            choice.check_vllm_adapters(settled)
            self.known[key] = Settled(settled)
        return self.known[key]


def settle_auto(config: Config, shape: Shape | None) -> Config:
    """Resolve `auto` in the device, the compute type and the engine, for a model of this shape on this machine.

    This is the only place where `auto` is resolved. All three decide which responses are drawn, so the resolved values
    are part of a cell's identity, and a cell's process, plans and launchers get the settled configuration.
    """
    device = devices.resolve_device(config.hardware.device)
    dtype = config.train.dtype
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" or bfloat16_pays(shape) else "float32"
    # By the requested device: for `auto`, the installed vLLM decides by the device that it was built for.
    engine = choice.resolve_engine(config.rollout.engine, config.hardware.device, shape)
    if config.train.backend == TRL:
        engine = choice.EMBEDDED  # it only evaluates
    if config.train.lora is not None and config.rollout.engine == "auto":
        engine = choice.EMBEDDED  # vLLM has not been tried with adapters on a GPU
    return dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, dtype=dtype),
        rollout=dataclasses.replace(config.rollout, engine=engine),
        hardware=dataclasses.replace(config.hardware, device=device),
    )


def bfloat16_pays(shape: Shape | None) -> bool:
    """Return whether a CPU gains by bfloat16 for a model.

    Narrow ones are made here, and compared across machines: their numbers do not depend on what a processor can.
    """
    return shape is not None and shape.hidden > NARROW and matmul.bfloat16_speed() >= matmul.PAYS


@dataclass(frozen=True)
class Settled:
    """A settled configuration, and the parts of its cells' records that are the same for all of them."""

    config: Config

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The part of a cell's identity that does not depend on its method, task, model and seed."""
        config, correction = self.config, self.config.correction
        identity: dict[str, Any] = {
            "train": config.train.plain(),
            "rollout": dataclasses.asdict(config.rollout),
            "eval": evaluation_identity(config.eval),
            "stop": config.stop.plain(),
        }
        if config.train.dtype == "float32":
            identity["train"]["dtype"] = "auto"  # the name of float32 in ids, which stay as they are
        if correction.kind != "off":  # without correction, its bounds have no effect
            identity["correction"] = dataclasses.asdict(correction)
        if config.hardware.device != "cpu":  # ids from before there was a choice stay as they are
            identity["device"] = config.hardware.device
        if config.train.loss_scale == MICRO_BATCH:  # then a token counts by the others in its micro-batch
            identity["micro_tokens"] = config.hardware.micro_tokens
            if config.hardware.world > 1:
                identity["ranks"] = config.hardware.world
        return identity

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The configuration as plain values without secrets, since many people may read the files of a cell."""
        settings = self.config.plain()
        # `Train.plain` leaves some values out. But a cell's key is read back from here (CellSpec.parse), and needs the
        # value of each axis.
        for axis, value in self.config.setting.items():
            section, _, name = axis.rpartition(".")
            if section == "train":
                settings["train"][name] = value
        if self.config.tracking.uri is not None:
            settings["tracking"]["uri"] = visible_address(self.config.tracking.uri)
        return settings


def evaluation_identity(settings: Eval) -> dict[str, Any]:
    """Return the settings that decide which answers an evaluation has."""
    return without_k(dataclasses.asdict(settings))


@dataclass(frozen=True)
class Cell:
    """A planned cell: its key, and its settings."""

    key: CellKey
    config: Config  # with the key's setting
    shared: Shared = field(repr=False, compare=False)

    @classmethod
    def of(cls, config: Config, method: str, task: str, model: str, seed: int, shared: Shared | None = None) -> Cell:
        """Return the cell of a configuration in which every further axis has one value."""
        key = CellKey(method, task, model, seed, tuple(config.setting.items()))
        return cls(key, config, shared or Shared(config))

    @property
    def method(self) -> str:
        return self.key.method

    @property
    def task(self) -> str:
        return self.key.task

    @property
    def model(self) -> str:
        return self.key.model

    @property
    def seed(self) -> int:
        return self.key.seed

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that defines the result; no paths, launchers, trackers or file names."""
        shared = self.shared
        return {
            "method": shared.method_identity(self.method, self.config.train.lr),
            "task": shared.task_identity(self.task),
            "evaluation_tasks": [shared.evaluation_identity(spec) for spec in self.evaluation_tasks],
            "model": shared.model_identity(self.model),
            "seed": self.seed,
            **shared.settled(self.config, self.model).identity,
            **shared.version(self.method, self.task, tuple(self.evaluation_tasks), self.config.eval.split),
        }

    @property
    def settled(self) -> Config:
        """The configuration with `auto` resolved for this model on this machine."""
        return self.shared.settled(self.config, self.model).config

    @cached_property
    def id(self) -> str:
        """The hash of its identity: two cells with the same id have the same result."""
        return identities.key(self.identity)

    @property
    def evaluation_tasks(self) -> list[str]:
        return self.config.eval.tasks or [self.task]

    @property
    def label(self) -> str:
        """The name of a cell in tables and messages: its method and seed, and the axes that vary in its matrix."""
        parts = [self.method]
        if len(self.config.tasks) > 1:
            parts.append(self.task)
        if len(self.config.models) > 1:
            parts.append(self.model)
        if self.config.axes:
            parts.append(setting_label(self.config.setting))
        return " ".join([*parts, f"seed {self.seed}"])

    @cached_property
    def folder(self) -> Path:
        return self.config.folder / f"{readable_name(self.method, self.task, self.model)}-s{self.seed}-{self.id}"

    @property
    def spec(self) -> CellSpec:
        """The record that its process reads."""
        settings = self.shared.settled(self.config, self.model).plain
        made_of = self.shared.made_of(self.method)
        return CellSpec(self.id, self.config.name, self.key, self.identity, settings, made_of)

    @property
    def sources(self) -> dict[str, str]:
        """The digests of the sources of its method and its tasks, by their names."""
        sources: dict[str, str] = self.identity["source"]
        return sources

    def progress(self, recent: int = 1) -> Progress:
        """Return the cell's progress with the metrics of this many steps; another cell's records are a failure."""
        progress, recorded = Progress.read(self.folder, recent), id_in(self.folder)
        if progress.state == "planned" or recorded in (None, self.id):
            return progress
        return Progress("failed", str(Damaged(self.folder / SPEC, f"it is of the cell {recorded}")))


def readable_name(method: str, task: str, model: str) -> str:
    """Return the beginning of the name of a cell's folder."""
    name = re.sub(r"[^\w.+-]+", "_", "-".join([method, task, Path(model).name]))
    return name.encode()[:LONGEST_NAME].decode(errors="ignore")  # a letter that is cut in two is left out


def cells(config: Config) -> list[Cell]:
    """Return all cells, checked. Seeds are the outermost loop, so an unfinished matrix compares methods fairly."""
    shared, settings = Shared(config), variants(config)
    check_methods_fit(config, settings, shared)
    check_evaluations(config, shared)
    if config.baseline not in config.methods:
        raise UserError(f"baseline is {config.baseline!r}, which is not among methods ({', '.join(config.methods)})")
    axes = itertools.product(config.seeds, settings, config.tasks, config.models, config.methods)
    matrix = [Cell.of(setting, method, task, model, seed, shared) for seed, setting, task, model, method in axes]
    check_distinct(matrix)
    return matrix


def check_methods_fit(config: Config, settings: list[Config], shared: Shared) -> None:
    """Refuse methods that a setting contradicts, and options of unknown methods."""
    for spec in [*config.methods, config.baseline]:
        method = shared.method(spec)
        if LR_AXIS in config.axes and method.objective.lr is not None:
            raise UserError(
                f"axes varies {LR_AXIS}, but method {spec!r} has a learning rate of its own; allowed: one of the two"
            )
        for task in config.tasks:
            check_rewards(method, task, shared.task(task))
        for setting in settings:
            check_backend(setting, method)
            check_filter(setting, method)
            check_group(setting, method)
            if setting.train.loss_scale == MICRO_BATCH and method.objective.normalise != "token":
                raise UserError(
                    f"train.loss_scale is {MICRO_BATCH}, but the loss of method {spec!r} is not a mean over tokens "
                    f"(normalise={method.objective.normalise}); allowed: methods with normalise=token"
                )
            if setting.correction.kind != "off" and setting.correction.level == "token":
                whose = f"correction.kind={setting.correction.kind}"
                composition.check_token_weights(whose, method.base, method.objective, "correction.level=sequence")
    known = composition.method_classes(shared.methods)
    for name in config.method_options:
        if name not in known:
            entry = shared.methods.get(name)
            why = "is neither objective nor control"
            if isinstance(entry, Composition):
                why = f"is short for {entry.spec}"
            raise UserError(f"method_options names {name!r}, which {why}; {nearest(name, known)}")


def check_filter(setting: Config, method: Method) -> None:
    """Refuse a method that needs the difficulty filter where there is none."""
    if method.needs_filter and setting.train.filter is None:
        needed = "reads how often the model before training solves each problem"
        if method.base_share:
            needed = "trains on right responses to problems that the model before training solves nearly always"
        raise UserError(
            f"train.filter is null, but method {method.name!r} {needed}, which the filter measures; write for example "
            "train.filter={n: 8}"
        )


def check_group(setting: Config, method: Method) -> None:
    """Refuse groups that are too small for a method."""
    if setting.train.group < method.min_group:
        raise UserError(
            f"train.group is {setting.train.group}, but method {method.name!r} compares the responses to one prompt "
            f"(allowed: {method.min_group} and more)"
        )


def check_rewards(method: Method, spec: str, task: Task) -> None:
    """Refuse scores as rewards for a method that would ignore them."""
    if isinstance(task, Graded) and task.graded and method.objective.ignores_rewards:
        raise UserError(
            f"method {method.name!r} uses only which responses are right, so that the scores of {shown(spec)} would be "
            "in vain; allowed: reward=verdict, or a method that learns from rewards"
        )


def check_evaluations(config: Config, shared: Shared) -> None:
    """Refuse tasks without the splits that they need, and evaluations of one name."""
    for spec in config.tasks:
        check_split(shared.task(spec), "train", "the split to train on")
    for spec in config.eval.tasks or config.tasks:
        check_split(shared.task(spec), config.eval.split, "eval.split")
    evaluated: dict[str, str] = {}  # specifications by the names of their evaluations
    for spec in config.eval.tasks or config.tasks:
        name = shared.evaluation_name(spec)
        # Without eval.tasks each cell is evaluated on its own task, so that no two of one name meet.
        if name in evaluated and config.eval.tasks:
            raise UserError(
                f"eval.tasks {evaluated[name]!r} and {spec!r} are both {name!r}, and one would overwrite the other; "
                "name one of them"
            )
        evaluated[name] = spec
    for trained, spec in itertools.product(config.tasks, config.eval.tasks):
        check_apart(trained, spec, config, shared)
    for name in config.eval.by_task:
        if name not in evaluated:
            raise UserError(f"eval.by_task names {name!r}, which is not evaluated; {nearest(name, evaluated)}")


def check_apart(trained: str, evaluated: str, config: Config, shared: Shared) -> None:
    """Refuse two data sets of the user's of which one is trained on problems of the other's evaluation."""
    one, other = shared.task(trained), shared.task(evaluated)
    if not (isinstance(one, OwnProblems) and isinstance(other, OwnProblems)):
        return
    split = config.eval.of(shared.evaluation_name(evaluated)).split
    trained_on = {problem.id for problem in one.problems("train")}
    both = [problem for problem in other.problems(split) if problem.id in trained_on]
    if both:
        raise UserError(
            f"{plural(len(both), 'problem')} of eval.tasks {shown(evaluated)} would be trained on with "
            f"{shown(trained)}; leave them out of one of the two"
        )


def check_distinct(matrix: list[Cell]) -> None:
    """Refuse two cells that are the same, and name the first axis at which their names differ."""
    seen: dict[str, Cell] = {}
    for cell in matrix:
        same = seen.setdefault(cell.id, cell)
        if same is cell:
            continue
        names = {
            "methods": (same.method, cell.method),
            "tasks": (same.task, cell.task),
            "models": (same.model, cell.model),
            "axes": (setting_label(same.config.setting), setting_label(cell.config.setting)),
        }
        for axis, (one, other) in names.items():
            if one != other:
                raise UserError(f"{axis} {one!r} and {other!r} are the same; name one of them")


def leftovers(config: Config, matrix: list[Cell]) -> dict[Path, str | None]:
    """Return the folders of cells that are not of the matrix, with the names of the parts edited since.

    None in their place: a cell of another configuration. Adopted cells are of no configuration, and so never left over.
    """
    ours, identities_by_training = set(), {}
    for cell in matrix:
        ours.add(cell.folder)
        identities_by_training[training_key(cell.identity)] = cell.identity
    left: dict[Path, str | None] = {}
    for path in sorted(config.folder.glob("*/config.yaml")):
        folder = path.parent
        if folder.is_symlink() or folder in ours or is_adopted(folder):
            continue
        left[folder] = None
        with contextlib.suppress(Damaged):  # then it is of no known version
            recorded = CellSpec.read(folder).identity
            present = identities_by_training.get(training_key(recorded))
            if present is not None:
                left[folder] = ", ".join(changed_parts(recorded, present))
    return left


def claim(config: Config) -> None:
    """Mark the results folder as this matrix's own; refuse the folder of another matrix."""
    check_owner(config)
    if not (config.folder / MARKER).exists():
        files.write_json(config.folder / MARKER, {"matrix": config.name})


def check_owner(config: Config) -> None:
    """Refuse a results folder that is another's.

    Its files are listed before the marker is read: another process that starts the same matrix at this moment makes no
    file before its marker.
    """
    folder, marker = config.folder, config.folder / MARKER
    others = []
    if folder.exists():
        names = [path.name for path in folder.iterdir()]
        others = [name for name in names if name not in (MARKER, *UNCLAIMED) and not files.TEMPORARY.fullmatch(name)]
    if marker.exists():
        record = files.read_json(marker)
        owner = record.get("matrix") if isinstance(record, dict) else None
        if owner is None:
            raise Damaged(marker, f'it must be {{"matrix": "{config.name}"}} if the folder is of this matrix')
        if owner != config.name:
            raise UserError(
                f"{folder} belongs to the matrix {owner!r}, not {config.name!r}; choose another name= or results="
            )
    elif others:
        raise UserError(f"{folder} holds files that entrobench did not make; choose another name= or results=")
