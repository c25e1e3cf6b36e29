"""The typed configuration. Every default of the harness lives here and nowhere else; imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor, inf
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from harness.base.errors import UserError, at_least, nearest, one_of
from harness.base.schema import typed

CONFIGS = Path(__file__).parent.parent / "configs"


@dataclass
class Filter:
    """Which problems are trained on, by how often the model solves them before any training."""

    n: int = 16  # responses to each problem
    low: float = 1 / 16  # pass rates up to this are too hard
    high: float = 15 / 16  # and from this on too easy

    def bounds(self) -> tuple[int, int]:
        """The fewest and the most right responses of n that lie strictly between low and high.

        By the decimals that were written: 0.9 as a float is a little more than 9/10.
        """
        low, high = (Fraction(str(rate)) * self.n for rate in (self.low, self.high))
        return floor(low) + 1, ceil(high) - 1


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
    filter: Filter | None = None  # null: every problem is trained on
    dtype: str = "auto"  # compute type; master weights are float32. auto: bfloat16 on cuda, float32 on a CPU


@dataclass
class RolloutConfig:
    engine: str = "auto"  # embedded | vllm | auto: vLLM where it is installed and the model large enough to gain
    temperature: float = 1.0
    max_new_tokens: int = 7168
    max_prompt_tokens: int | None = None  # problems with longer prompts are not trained on; null: there are none


@dataclass
class Correction:
    """Of the gradient, for what trainer and engine disagree on. docs/mismatch.md has formulas and sources."""

    kind: str = "off"  # off | truncated: a ratio above high counts as high | masked: one beyond low and high as nothing
    level: str = "token"  # token | sequence: the ratio of each token, or that of the whole response
    low: float = 0.0
    high: float = 2.0


@dataclass
class Bounds:
    """On the size of log p of the trainer minus log p of the engine, of sampled tokens; null: none."""

    p99: float | None = None
    max: float | None = None


@dataclass
class Mismatch:
    """Beyond these a cell stops, by the type that it computes in."""

    # In float32 p99 is some 1e-6; a thousand times that is no rounding.
    float32: Bounds = field(default_factory=lambda: Bounds(p99=0.01, max=0.1))
    # In bfloat16 rare tokens may be off by any amount, so that only their share says something.
    bfloat16: Bounds = field(default_factory=lambda: Bounds(p99=0.5))


@dataclass
class Eval:
    tasks: list[str] = field(default_factory=list)  # empty: the task that is trained on
    split: str = "test"
    problems: int | None = None  # how many problems of the split; null: all
    samples: int = 32  # n responses to each problem
    k: int = 16  # the K of the headline Pass@K
    temperature: float = 0.7
    every: int = 0  # also evaluate every so many steps; 0: only before training and at the end
    beyond_context: bool = False  # also where prompt and response exceed the model's max_position_embeddings
    by_task: dict[str, dict[str, Any]] = field(default_factory=dict)  # problems, samples, k, temperature of one task

    def of(self, task: str) -> Eval:
        """The settings that hold for one evaluation task, by its name."""
        given, where = self.by_task.get(task, {}), f"eval.by_task.{task}."
        for key in given:
            if key not in BY_TASK:
                raise UserError(f"unknown key {where}{key}; {nearest(str(key), BY_TASK)}")
        settings: Eval = typed(dataclasses.replace(self, by_task={}), given, where)
        return settings


@dataclass
class Verify:
    limit_s: float = 5.0  # for one answer; what takes longer is a timeout, which is no right answer
    workers: int = 2  # processes that judge what is no integer
    max_failures: float = 0.05  # share of timeouts and errors in a step or an evaluation above which the cell stops


@dataclass
class Dynamics:
    every: int = 10  # steps from one measured change of the entropy to the next; 0: the instrument is off


@dataclass
class Checkpoint:
    every: int = 20  # steps
    save_model: bool = True  # keep the trained model as a Hugging Face folder in the cell


@dataclass
class Hardware:
    device: str = "auto"  # auto | cpu | cuda
    threads: int = 1  # CPU threads of a process
    ranks: int = 1  # processes of a cell, each with a device of its own; they share the model's weights among them
    micro_tokens: int = 16384  # tokens, padding included, of one forward pass
    recompute: bool = False  # a layer's activations are computed again in the backward pass instead of kept
    cache_gib: float | None = None  # vLLM's keys and values; null: 1 on a CPU, on a GPU with the weights half of it
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
    correction: Correction = field(default_factory=Correction)
    mismatch: Mismatch = field(default_factory=Mismatch)
    eval: Eval = field(default_factory=Eval)
    verify: Verify = field(default_factory=Verify)
    dynamics: Dynamics = field(default_factory=Dynamics)
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


BY_TASK = ("problems", "samples", "k", "temperature")  # what an evaluation task may have of its own


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
    at_least(
        1, **{"rollout.max_new_tokens": config.rollout.max_new_tokens, "hardware.threads": config.hardware.threads}
    )
    at_least(1, **{"checkpoint.every": config.checkpoint.every, "verify.workers": config.verify.workers})
    if config.verify.limit_s <= 0:
        raise UserError(f"verify.limit_s is {config.verify.limit_s}; allowed: more than 0")
    if not 0 <= config.verify.max_failures <= 1:
        raise UserError(f"verify.max_failures is {config.verify.max_failures}; allowed: 0 to 1")
    at_least(0, **{"eval.every": evaluation.every, "dynamics.every": config.dynamics.every})
    at_least(0, **{"train.warmup_steps": train.warmup_steps, "train.lr": train.lr})
    if train.prompts % train.updates:
        raise UserError(f"train.updates is {train.updates}; it must divide train.prompts ({train.prompts})")
    at_least(1, **{"hardware.ranks": config.hardware.ranks})
    if train.prompts % (train.updates * config.hardware.ranks):
        raise UserError(
            f"hardware.ranks is {config.hardware.ranks}; train.prompts ({train.prompts}) must be a multiple of "
            f"train.updates x hardware.ranks ({train.updates} x {config.hardware.ranks})"
        )
    if config.rollout.temperature <= 0:
        raise UserError(f"rollout.temperature is {config.rollout.temperature}; training needs more than 0")
    if train.filter is not None:
        validate_filter(train.filter)
    at_least(1, **{"rollout.max_prompt_tokens": config.rollout.max_prompt_tokens})
    validate_correction(config.correction)
    for dtype, bounds in vars(config.mismatch).items():
        at_least(0, **{f"mismatch.{dtype}.{key}": bound for key, bound in vars(bounds).items()})
    validate_evaluation(evaluation, "eval.")
    for task in evaluation.by_task:
        validate_evaluation(evaluation.of(task), f"eval.by_task.{task}.")
    one_of("hardware.device", config.hardware.device, ("auto", "cpu", "cuda"))
    one_of("train.dtype", train.dtype, ("auto", "float32", "bfloat16"))
    one_of("rollout.engine", config.rollout.engine, ("auto", "embedded", "vllm"))
    if config.hardware.cache_gib is not None and not 0 < config.hardware.cache_gib < inf:
        raise UserError(f"hardware.cache_gib is {config.hardware.cache_gib}; allowed: more than 0")


def validate_correction(given: Correction) -> None:
    one_of("correction.kind", given.kind, ("off", "truncated", "masked"))
    one_of("correction.level", given.level, ("token", "sequence"))
    at_least(1, **{"correction.high": given.high})
    if not 0 <= given.low <= 1:
        raise UserError(f"correction.low is {given.low}; allowed: 0 to 1")
    if given.low and given.kind != "masked":
        raise UserError(f"correction.low is {given.low}, but kind={given.kind} has no lower bound; allowed: 0")


def validate_filter(given: Filter) -> None:
    at_least(1, **{"train.filter.n": given.n})
    if not 0 <= given.low < given.high <= 1:
        raise UserError(
            f"train.filter keeps pass rates between low ({given.low}) and high ({given.high}); "
            "allowed: 0 <= low < high <= 1"
        )
    fewest, most = given.bounds()
    if fewest > most:
        raise UserError(
            f"train.filter.n is {given.n}, and no share of {given.n} lies strictly between low ({given.low}) and high "
            f"({given.high}); allowed: more responses, or a wider range"
        )


def validate_evaluation(settings: Eval, where: str) -> None:
    at_least(1, **{f"{where}{key}": getattr(settings, key) for key in ("samples", "k", "problems")})
    at_least(0, **{f"{where}temperature": settings.temperature})
    if settings.k > settings.samples:
        raise UserError(f"{where}k is {settings.k}, more than {where}samples ({settings.samples}); allowed: up to that")
