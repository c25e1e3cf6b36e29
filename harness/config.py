"""The typed configuration. Every default of the harness lives here and nowhere else; imports no torch."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

CONFIGS = Path(__file__).parent.parent / "configs"


class UserError(ValueError):
    """A mistake that the user can mend: one clear sentence, exit code 2, no traceback."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The end of an error sentence: what is allowed, and the closest name if one is close."""
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"allowed: {', '.join(names)}{hint}"


def one_of(key: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise UserError(f"{key} is {value!r}; {nearest(str(value), allowed)}")


def at_least(low: float, **values: float | None) -> None:
    for key, value in values.items():
        if value is not None and value < low:
            raise UserError(f"{key} is {value}; allowed: {low} and more")


@dataclass
class Train:
    steps: int = 300
    prompts: int = 64  # prompts of one step
    group: int = 16  # responses to each prompt
    updates: int = 2  # optimiser steps in one pass over a rollout batch
    epochs: int = 1  # passes over a rollout batch
    lr: float = 1e-6
    warmup_steps: int = 0
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    dtype: str = "auto"  # compute type; master weights are float32. auto: bfloat16 on cuda, float32 on a CPU


@dataclass
class RolloutConfig:
    engine: str = "embedded"
    temperature: float = 1.0
    max_new_tokens: int = 7168


@dataclass
class Eval:
    tasks: list[str] = field(default_factory=list)  # empty: the task that is trained on
    split: str = "test"
    problems: int | None = None  # how many problems of the split; null: all
    samples: int = 32  # n responses to each problem
    k: int = 16  # the K of the headline Pass@K
    temperature: float = 0.7
    every: int = 0  # also evaluate every so many steps; 0: only before training and at the end


@dataclass
class Checkpoint:
    every: int = 20  # steps
    save_model: bool = True  # keep the trained model as a Hugging Face folder in the cell


@dataclass
class Hardware:
    device: str = "auto"  # auto | cpu | cuda
    threads: int = 1  # CPU threads of a cell
    micro_tokens: int = 16384  # tokens, padding included, of one forward pass
    timeout_minutes: float | None = None  # a cell that takes longer is stopped and counted as failed


@dataclass
class Tracking:
    uri: str | None = None  # null: SQLite beside the results


@dataclass
class Config:
    name: str = ""  # of the matrix; empty: the name of the file
    methods: list[str] = field(default_factory=lambda: ["grpo"])
    method_options: dict[str, dict[str, Any]] = field(default_factory=dict)  # by component, wherever it appears
    tasks: list[str] = field(default_factory=lambda: ["countdown"])
    models: list[str] = field(default_factory=lambda: ["countdown-tiny"])
    seeds: list[int] = field(default_factory=lambda: [0])
    baseline: str = "grpo"  # the method that the others are compared with
    train: Train = field(default_factory=Train)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    eval: Eval = field(default_factory=Eval)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    hardware: Hardware = field(default_factory=Hardware)
    tracking: Tracking = field(default_factory=Tracking)
    plugins: list[str] = field(default_factory=list)  # modules that register further methods
    results: str = "results"

    @property
    def folder(self) -> Path:
        return Path(self.results) / self.name

    @property
    def tracking_uri(self) -> str:
        return self.tracking.uri or f"sqlite:///{Path(self.results) / 'mlflow.db'}"


# Asked for often, and wrong here: the log-probabilities that are trained are those of the untruncated softmax.
TRUNCATED_SAMPLING = ("top_p", "top_k", "min_p")


def find(name: str, folder: Path = CONFIGS) -> Path:
    """A path as it is, or the name of a file in configs/."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise UserError(f"there is no file {name}")
    shipped = {p.stem: p for p in folder.glob("*.yaml")}
    if name not in shipped:
        raise UserError(f"no configuration is called {name!r}; {nearest(name, shipped)}, or the path of a YAML file")
    return shipped[name]


def refuse_unknown_keys(given: Any, schema: Any, prefix: str = "") -> None:
    known = {f.name: f for f in dataclasses.fields(schema)}
    for key, value in given.items():
        if prefix == "rollout." and key in TRUNCATED_SAMPLING:
            raise UserError(
                f"rollout.{key} is {value!r}, but training samples by temperature alone (allowed: "
                "rollout.temperature), since a truncated sampler is another policy than the one that is trained"
            )
        if key not in known:
            raise UserError(f"unknown key {prefix}{key}; {nearest(str(key), known)}")
        child = getattr(schema, str(key), None)
        if dataclasses.is_dataclass(child):
            if not isinstance(value, dict):
                raise UserError(f"{prefix}{key} is {value!r}; it must be a mapping of keys")
            refuse_unknown_keys(value, child, f"{prefix}{key}.")


def typed(schema: Any, given: dict[str, Any], where: str) -> Any:
    """`given` laid over the defaults of the dataclass `schema`, with names and types checked."""
    refuse_unknown_keys(given, schema, where)
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), given))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or ""
        raise UserError(f"{where}{key}: {str(error).splitlines()[0]}") from error


def with_base(path: Path) -> list[Any]:
    """The file, after the one that its key `base` names."""
    layer = OmegaConf.load(path)
    base = layer.pop("base", None) if isinstance(layer, DictConfig) else None
    return [*(with_base(find(base)) if base else []), layer]


def load(name: str, overrides: Iterable[str] = ()) -> Config:
    """The configuration in a file, with `key=value` overrides on top."""
    path = find(name)
    try:
        layers = with_base(path)
        for override in overrides:
            if "=" not in override:
                raise UserError(f"{override!r} is not an override; write key=value, for example train.steps=10")
            layers.append(OmegaConf.from_dotlist([override]))
        given = OmegaConf.to_container(OmegaConf.merge(*layers), resolve=True)
    except UserError:
        raise
    except Exception as error:  # YAML's and OmegaConf's parsers share no base class
        raise UserError(f"{path} cannot be read as a configuration: {str(error).splitlines()[0]}") from error
    if not isinstance(given, dict):
        raise UserError(f"{path} holds no mapping of keys")
    config: Config = typed(Config(), cast(dict[str, Any], given), "")
    config.name = config.name or path.stem
    validate(config)
    return config


def validate(config: Config) -> None:
    train, evaluation = config.train, config.eval
    for axis in ("methods", "tasks", "models", "seeds"):
        values = getattr(config, axis)
        if not values:
            raise UserError(f"{axis} is empty; a matrix needs at least one")
        if len(set(values)) < len(values):
            raise UserError(f"{axis} names {next(v for v in values if values.count(v) > 1)!r} twice")
    at_least(1, **{f"train.{k}": getattr(train, k) for k in ("steps", "prompts", "group", "updates", "epochs")})
    at_least(1, **{"eval.samples": evaluation.samples, "eval.k": evaluation.k, "eval.problems": evaluation.problems})
    at_least(
        1, **{"rollout.max_new_tokens": config.rollout.max_new_tokens, "hardware.threads": config.hardware.threads}
    )
    at_least(1, **{"checkpoint.every": config.checkpoint.every})
    at_least(0, **{"eval.every": evaluation.every, "train.warmup_steps": train.warmup_steps, "train.lr": train.lr})
    if train.prompts % train.updates:
        raise UserError(f"train.updates is {train.updates}; it must divide train.prompts ({train.prompts})")
    if config.rollout.temperature <= 0:
        raise UserError(f"rollout.temperature is {config.rollout.temperature}; training needs more than 0")
    if evaluation.k > evaluation.samples:
        raise UserError(f"eval.k is {evaluation.k}, more than eval.samples ({evaluation.samples}); allowed: up to that")
    one_of("hardware.device", config.hardware.device, ("auto", "cpu", "cuda"))
    one_of("train.dtype", train.dtype, ("auto", "float32", "bfloat16"))
    one_of("rollout.engine", config.rollout.engine, ("embedded",))
