"""Checks of a configuration beyond the types and bounds of single values: names, sizes, and values that contradict."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from math import prod
from pathlib import Path
from typing import Any

from harness.base.addresses import may_be_written, visible_address
from harness.base.errors import UserError, nearest, one_of, short, shown
from harness.base.schema import keys_with_types, section
from harness.base.shape import ARCHITECTURES, LINEAR, Shape
from harness.config.sections import ADAMW8BIT, MOST_CANDIDATES, Config, Eval, Filter, Hardware, Lora, Resample

MOST_CELLS = 5_000  # of a matrix
LONGEST_SPEC = 2_000  # characters of a method or a task with its options
NAME = re.compile(r"\w[\w .,+=@()-]{0,99}")  # of a matrix, and so of its folder and of its experiment in MLflow
# Names in the results folder that are not matrices: evaluations, and the store with its files, locks and journals.
RESERVED = re.compile(r"eval|mlartifacts|mlflow\.db.*", re.IGNORECASE)
# Of MLflow's own kinds of stores, without `file`, which it refuses by default. A package may register more.
SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks", "databricks-uc", "uc")

# Names of settings in other libraries, with the last part of the key here.
SYNONYMS = {
    "learning_rate": "lr",
    "max_steps": "steps",
    "num_steps": "steps",
    "batch_size": "prompts",
    "group_size": "group",
    "num_generations": "group",
    "num_epochs": "epochs",
    "max_grad_norm": "grad_clip",
    "max_tokens": "max_new_tokens",
    "max_completion_length": "max_new_tokens",
    "seed": "seeds",
    "method": "methods",
    "task": "tasks",
    "model": "models",
    "gpus": "ranks",
}


def check_misplaced_keys(values: Mapping[str, Any], schema: Any, where: str = "") -> None:
    """Refuse an unknown key whose name is that of a setting in another section or in another library."""
    known = dict(keys_with_types(Config))
    for name, value in values.items():
        if f"{where}{name}" in known:
            inner = section(known[f"{where}{name}"])
            if inner is not None and isinstance(value, Mapping):
                check_misplaced_keys(value, inner, f"{where}{name}.")
            continue
        wanted = SYNONYMS.get(name, name)
        keys = [key for key in known if key.rpartition(".")[2] == wanted]
        if f"{where}{wanted}" in keys:  # the key of this section, not those of others with its name
            keys = [f"{where}{wanted}"]
        if keys and name not in getattr(schema, "refused", ()):
            raise UserError(f"unknown key {short(f'{where}{name}')}; did you mean {' or '.join(map(repr, keys))}?")


def check_names(config: Config) -> None:
    """Refuse names that leave the results folder or break an address of MLflow, and passwords in a file."""
    if not NAME.fullmatch(config.name):
        raise UserError(
            f"name is {shown(config.name)}; allowed: up to 100 letters, digits, blanks and _ . , + = @ ( ) -, "
            "the first of them a letter, a digit or _"
        )
    # Of the address of an SQLite store. All others make a path that is not in the results folder.
    store_file = Path(config.tracking_uri.removeprefix("sqlite:///").partition("?")[0])
    in_results = store_file.absolute().parent == Path(config.results).absolute()
    if RESERVED.fullmatch(config.name) or (in_results and config.name.startswith(store_file.name)):
        raise UserError(
            f"name is {shown(config.name)}, which is reserved in the results folder; allowed: every name except eval, "
            f"mlartifacts, and names that begin with mlflow.db or {shown(store_file.name)}"
        )
    if refused := re.search(r"[?#%]|^~", config.results):
        raise UserError(
            f"results is {shown(config.results)}; it becomes part of an address of MLflow, so {refused[0]} is not "
            "allowed"
        )
    results = Path(config.results)
    for folder in (results, *results.parents):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"results is {shown(config.results)}, but {folder} is a file; name a folder")
    if config.tracking.uri and not may_be_written(config.tracking.uri):
        raise UserError(
            "tracking.uri may hold a user, a password or a token, and configurations are written down (allowed: "
            "http://HOST:5000, sqlite:///PATH); for a server set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, for a database the whole address as MLFLOW_TRACKING_URI"
        )
    if config.tracking.uri:
        check_scheme(config.tracking.uri)


def check_scheme(uri: str) -> None:
    """Refuse the address of an MLflow store of a kind that MLflow cannot open; this does not load MLflow."""
    scheme = uri.partition("://")[0].partition("+")[0].lower()
    if scheme in SCHEMES or scheme in metadata.entry_points(group="mlflow.tracking_store").names:
        return
    if "://" not in uri:
        raise UserError(
            f"the MLflow store at {visible_address(uri)} has no scheme in its address; write sqlite:///PATH for a "
            "file, http://HOST for a server"
        )
    raise UserError(
        f"the MLflow store at {visible_address(uri)} is of no kind that MLflow opens; {nearest(scheme, SCHEMES)}"
    )


def check_number(config: Config) -> None:
    """Refuse a matrix, or a specification in it, that is too large to be meant."""
    axes = (config.methods, config.tasks, config.models, config.seeds, *config.axes.values())
    # Axes are not checked yet: `variants` refuses one that is not a list.
    number = prod(len(values) for values in axes if isinstance(values, list))
    if number > MOST_CELLS:
        raise UserError(f"the matrix has {number} cells; allowed: {MOST_CELLS}, so divide it into several")
    for spec in (*config.methods, *config.tasks, *config.eval.tasks, config.baseline):
        if len(spec) > LONGEST_SPEC:
            raise UserError(f"{shown(spec)} has {len(spec)} characters; allowed: {LONGEST_SPEC}")


def check_candidate_counts(config: Config) -> None:
    """Refuse candidates that are missing, too many or not equally many, or whose seeds results use."""
    candidates = config.tune.candidates
    for method in config.methods:
        specs = candidates.get(method, [])
        if not specs:
            raise UserError(
                f"tune.candidates has none of {shown(method)}; each method needs as many as the others, from 1 to "
                f"{MOST_CANDIDATES} (its published constants may be one)"
            )
        if len(specs) > MOST_CANDIDATES:
            raise UserError(f"tune.candidates.{method} has {len(specs)}; allowed: up to {MOST_CANDIDATES}")
    if len(set(map(len, candidates.values()))) > 1:
        counts = [f"{len(specs)} of {method}" for method, specs in candidates.items()]
        raise UserError(f"tune.candidates has {', '.join(counts)}; each method needs as many as the others")
    seeds = config.tune.seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"tune.seeds is {shown(seeds)}; allowed: one and more, each once")
    shared = sorted({*config.seeds} & {*seeds})
    if shared:
        raise UserError(f"tune.seeds and seeds both have {shared[0]}; candidates need seeds that no result uses")


def validate(config: Config) -> None:
    """Refuse values that are each allowed, but contradict each other."""
    train, evaluation = config.train, config.eval
    for axis in ("methods", "tasks", "models", "seeds"):
        values = getattr(config, axis)
        if not values:
            raise UserError(f"{axis} is empty; a matrix needs at least one")
        if len(set(values)) < len(values):
            repeated = next(value for value in values if values.count(value) > 1)
            raise UserError(f"{axis} names {shown(repeated)} twice")
    if train.prompts % train.updates:
        raise UserError(f"train.updates is {train.updates}; it must divide train.prompts ({train.prompts})")
    hardware = config.hardware
    # Every rank trains on equally many groups of each mini-batch.
    if train.prompts % (train.updates * hardware.world):
        ranks = "hardware.ranks" if hardware.nodes == 1 else "hardware.nodes x hardware.ranks"
        raise UserError(
            f"{ranks} is {hardware.world}; train.prompts ({train.prompts}) must be a multiple of "
            f"train.updates x {ranks} ({train.updates} x {hardware.world})"
        )
    if hardware.share < 1 and hardware.world > 1:
        raise UserError(
            f"hardware.share is {hardware.share:g}, but a cell of {hardware.world} ranks has whole GPUs; allowed: 1"
        )
    if train.filter is not None:
        validate_filter(train.filter)
    if train.resample is not None:
        validate_resample(train.resample, config)
    if train.lora is not None:
        validate_adapters(train.lora, hardware)
    if train.optimizer == ADAMW8BIT:
        check_one_rank(f"train.optimizer is {ADAMW8BIT!r}", hardware)
        if hardware.offload:
            raise UserError(
                f"hardware.offload is true, which moves AdamW to the CPU, where train.optimizer={ADAMW8BIT} is slow "
                "and saves the device nothing; allowed: one of the two"
            )
    if config.rollout.lag >= train.steps:
        raise UserError(
            f"rollout.lag is {config.rollout.lag}, but train.steps is {train.steps}, and no step comes "
            f"{config.rollout.lag} after the first; allowed: 0 to {train.steps - 1}"
        )
    beside_masked = config.correction.kind == "off" and "masked" in config.axes.get("correction.kind", [])
    if config.correction.low and config.correction.kind != "masked" and not beside_masked:
        raise UserError(
            f"correction.low is {config.correction.low}, but kind={config.correction.kind} has no lower bound; "
            "allowed: 0"
        )
    validate_evaluation(evaluation, "eval.")
    for task in evaluation.by_task:
        validate_evaluation(evaluation.of(task), f"eval.by_task.{task}.")


def validate_filter(settings: Filter) -> None:
    n, low, high = settings.n, settings.low, settings.high
    if low >= high:
        raise UserError(f"train.filter keeps pass rates between low ({low}) and high ({high}); allowed: low < high")
    fewest, most = settings.bounds()
    if fewest > most:
        raise UserError(
            f"train.filter.n is {n}, and no share of {n} lies strictly between low ({low}) and high ({high}); "
            "allowed: more responses, or a wider range"
        )


def validate_resample(settings: Resample, config: Config) -> None:
    train, ranks = config.train, config.hardware.world
    if train.group == 1:
        raise UserError("train.group is 1, so no response can earn more than another; train.resample needs 2 and more")
    candidates = settings.candidates(train.prompts)
    if candidates % ranks:  # for one rank: not a whole number
        multiple = f" and a multiple of hardware.ranks ({ranks})" if ranks > 1 else ""
        raise UserError(
            f"train.resample.multiplier is {settings.multiplier:g}; train.prompts x multiplier ({float(candidates):g}) "
            f"must be a whole number{multiple}"
        )


def validate_adapters(settings: Lora, hardware: Hardware) -> None:
    if not settings.targets:
        raise UserError(f"train.lora.targets is empty; allowed: one and more of {', '.join(LINEAR)}")
    for name in settings.targets:
        if settings.targets.count(name) > 1:
            raise UserError(f"train.lora.targets names {shown(name)} twice")
        if name == "lm_head":
            raise UserError(
                "train.lora.targets names 'lm_head', but log p is computed from chunks of the head's weight, which an "
                "adapter would not reach; leave it out"
            )
        one_of("train.lora.targets", name, LINEAR)
    check_one_rank("train.lora is set", hardware)


def check_one_rank(setting: str, hardware: Hardware) -> None:
    """Refuse several ranks with a setting that trains on one."""
    if hardware.world > 1:
        raise UserError(
            f"a cell has {hardware.world} ranks (hardware.ranks, hardware.nodes), and {setting}, which trains on one; "
            "allowed: 1"
        )


def check_adapters_fit(settings: Lora, architecture: str, shape: Shape | None) -> None:
    """Refuse adapters for a model whose layers may have other names, or larger than its layers."""
    if shape is None or architecture not in ARCHITECTURES:
        allowed = ", ".join(ARCHITECTURES)
        raise UserError(
            f"the model's architecture (model_type) is {architecture!r}; with train.lora, allowed: {allowed}"
        )
    for name in settings.targets:
        size = min(shape.linear[name])
        if settings.rank > size:
            raise UserError(
                f"train.lora.rank is {settings.rank}, but {name} of the model has only {size} "
                f"{'inputs' if size == shape.linear[name][0] else 'outputs'}; allowed: 1 to {size}"
            )


def validate_evaluation(settings: Eval, where: str) -> None:
    if settings.k > settings.samples:
        raise UserError(f"{where}k is {settings.k}, more than {where}samples ({settings.samples}); allowed: up to that")
