"""The cost of a cell by closed forms: responses and tokens, bytes, and a rough time; without torch, network or data.

docs/paper.md explains the formulas. Numbers that are fixed by code which needs torch stand here again, and tests hold
the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import tasks
from harness.base.errors import UserError
from harness.base.shape import Shape
from harness.config import Config
from harness.data import cache, sets

Needs = frozenset[str]  # of what takes memory: values, ref_logp

FLOAT = 4  # bytes of float32, in which master weights, gradients, moments and statistics are kept

SEQUENCES = 512  # that the embedded engine decodes at once
TOGETHER = 1024  # that vLLM does, where its cache has room for them
CPU_CACHE_GIB = 1.0  # vLLM's keys and values on a CPU, where no size is given
GPU_SHARE = 0.5  # of a GPU's memory, for vLLM's weights and cache, where no size of the cache is given
LOGITS = 2**25  # that the token statistics hold at once
LOGIT_COPIES = 6  # of them in float32, at the peak of a backward pass through logp and entropy (measured)
COLUMNS = 64  # bytes of ids, statistics and weights of each token of a rollout batch

UNKNOWN_SET = 17_000  # problems of DAPO-Math-17k, the only set whose size depends on the copy, while it is not prepared


def share(number: int, config: Config) -> int:
    """Returns the part of one rank, where a cell's ranks share evenly."""
    return ceil(number / config.hardware.world)


# Responses


@dataclass(frozen=True)
class Asked:
    """So many responses to each of so many problems."""

    problems: int
    samples: int
    known: bool = True  # False: the number of problems is assumed

    @property
    def responses(self) -> int:
        return self.problems * self.samples


def trained(config: Config) -> Asked:
    """In one step."""
    return Asked(config.train.prompts, config.train.group)


def drawn(config: Config) -> tuple[Asked, int]:
    """Returns what is sampled at once for one step, and how often it is drawn at most."""
    resample, step = config.train.resample, trained(config)
    if resample is None:
        return step, 1
    return Asked(int(resample.candidates(step.problems)), step.samples), resample.max_batches


def scored(config: Config) -> dict[str, Asked]:
    """In one evaluation, by task."""
    found = {}
    for spec in config.eval.tasks or config.tasks:
        task = tasks.build_task(spec, config.plugins)
        name = tasks.evaluation_name(task)
        settings = config.eval.of(name)
        number, known = (settings.problems, True) if settings.problems else number_of(task, settings.split)
        found[name] = Asked(number, settings.samples, known)
    return found


def check_problems(variants: Sequence[Config]) -> None:
    """Refuse evaluations that ask for more problems than their split has, as far as the number is known."""
    sizes: dict[tuple[str, str], tuple[int, bool]] = {}  # by task and split: Countdown takes 0.1 s to list its problems
    evaluations_of = [(config, spec) for config in variants for spec in config.eval.tasks or config.tasks]
    for config, spec in evaluations_of:
        task = tasks.build_task(spec, config.plugins)
        name = tasks.evaluation_name(task)
        settings = config.eval.of(name)
        if settings.problems is None:
            continue
        place = name, settings.split
        if place not in sizes:
            sizes[place] = number_of(task, settings.split)
        number, known = sizes[place]
        if known and settings.problems > number:
            own = config.eval.by_task.get(name, {}).get("problems") is not None
            key = f"eval.by_task.{name}.problems" if own else "eval.problems"
            raise UserError(
                f"{key} is {settings.problems}, but {name} has {number} problems in its {settings.split} split "
                f"(allowed: up to {number}, or null for all)"
            )


def evaluations(config: Config) -> int:
    """How often a cell evaluates."""
    every, steps = config.eval.every, config.train.steps
    return len({0, steps, *(range(every, steps, every) if every else ())})


def filtered(config: Config) -> dict[str, Asked]:
    """Returns how much the difficulty filter asks each model, once for all cells, by task."""
    given = config.train.filter
    if given is None:
        return {}
    found = {}
    for spec in config.tasks:
        task = tasks.build_task(spec, config.plugins)
        number, known = number_of(task, "train")
        found[task.name] = Asked(number, given.n, known)
    return found


def number_of(task: tasks.Task, split: str) -> tuple[int, bool]:
    """The problems of a split at most, and whether that is known or assumed."""
    if task.name not in sets.SETS:
        return len(task.problems(split)), True
    card = cache.find_card(task.name)
    if split == "validation" and card is not None and cache.is_intact(card):  # a part whose size no card states
        return len(task.problems(split)), True
    part = "test" if split == "test" else "train"  # of which validation is a part
    stated = card["problems"].get(part) if card else sets.SETS[task.name].splits[part].problems
    return (stated, True) if stated else (UNKNOWN_SET, False)


# Engines


@dataclass(frozen=True)
class Engine:
    """The engine that each rank has of its own, with the whole model in the compute type."""

    at_once: int  # sequences that it decodes, at most
    cache: int | None  # bytes of keys and values, however few are needed; None: what the sequences need
    sleeps: bool  # its weights and cache are given back while the policy is updated


EMBEDDED = Engine(SEQUENCES, cache=None, sleeps=False)


def vllm(shape: Shape, config: Config, size: int, kind: str, device: int) -> Engine:
    """On a device of this kind with so many bytes of memory."""
    if config.hardware.cache_gib is not None:
        cache = int(config.hardware.cache_gib * 2**30)
    elif kind == "cpu":
        cache = int(CPU_CACHE_GIB * 2**30)
    else:
        cache = max(int(GPU_SHARE * device) - size * shape.parameters, 0)
    return Engine(TOGETHER, cache, sleeps=kind == "cuda")


def cached(shape: Shape, size: int) -> int:
    """Bytes of one token's keys and values."""
    return 2 * shape.layers * shape.keys * size


def longest(config: Config) -> int:
    """Tokens of a prompt with its response; of the response alone where prompts have no limit."""
    return (config.rollout.max_prompt_tokens or 0) + config.rollout.max_new_tokens


def fitting(shape: Shape, config: Config, size: int, engine: Engine) -> int:
    """Sequences of full length that a rank decodes at once, at most; others wait."""
    if engine.cache is None:
        return engine.at_once
    return min(engine.at_once, engine.cache // (longest(config) * cached(shape, size)))


# Bytes


@dataclass(frozen=True)
class Memory:
    """Bytes on the device of each rank. Training and generation take turns, so that the larger of them counts."""

    training: dict[str, int]
    generation: dict[str, int]
    beside: int  # of the machine's own memory, for each rank

    @property
    def peak(self) -> int:
        return max(sum(self.training.values()), sum(self.generation.values()))


def width(config: Config, kind: str) -> int:
    """Bytes of the compute type on a device of this kind."""
    dtype = config.train.dtype
    return 4 if dtype == "float32" or (dtype == "auto" and kind == "cpu") else 2


def activations(shape: Shape, size: int, recompute: bool) -> int:
    """Bytes that torch keeps of one token for the backward pass.

    A layer keeps, of each of its two norms, input and scaled input in float32, and their casts for each of five
    projections or (in float32) the two results; queries, keys, values and what attention reads; four vectors of the
    feed-forward width; a number for each head and each norm. Norms of queries and keys keep theirs. At the end: the
    last norm's input, scaled input and result.

    A layer that is recomputed keeps its input, in float32, and all the rest only while its turn lasts.
    """
    heads = shape.queries + shape.keys
    layer = (16 + (2 * FLOAT if size == FLOAT else 5 * size)) * shape.hidden + 2 * FLOAT
    layer += size * (4 * shape.mlp + 2 * heads) + FLOAT * shape.heads
    if shape.qk_norm:
        layer += (FLOAT + size) * heads + FLOAT * (shape.heads + shape.kv_heads)
    layers = (shape.layers - 1) * FLOAT * shape.hidden + layer if recompute else shape.layers * layer
    return layers + 3 * FLOAT * shape.hidden + FLOAT


def casts(shape: Shape, size: int, recompute: bool) -> int:
    """Bytes of weights in the compute type that the backward pass needs: of all layers, or of the one that is
    recomputed, and of the head."""
    layers = shape.layer if recompute else shape.body
    return 0 if size == FLOAT else size * (layers + shape.embedding)


def memory(shape: Shape, config: Config, needs: frozenset[str], size: int, engine: Engine) -> Memory:
    """For a method with these needs, at so many bytes of the compute type."""
    hardware = config.hardware
    critic = shape.critic if "values" in needs else 0
    reference = shape.parameters if "ref_logp" in needs else 0
    held = {
        "weights": share(FLOAT * (shape.parameters + critic + reference), config),
        "AdamW": 0 if hardware.offload else share(2 * FLOAT * (shape.parameters + critic), config),
    }
    # A checkpoint is copied there before it is written; with offload moments and a copy of all weights lie there too.
    beside = share(3 * FLOAT * (shape.parameters + critic), config)
    beside += hardware.offload * (beside + share(FLOAT * reference, config))
    batch = share(trained(config).responses, config) * longest(config)
    together = min(max(hardware.micro_tokens, longest(config)), batch // config.train.updates)
    training = {
        "gradients": share(FLOAT * max(shape.parameters, critic), config),  # the critic's turn is after the policy's
        "casts": casts(shape, size, hardware.recompute),
        "activations": together * activations(shape, size, hardware.recompute),
        "logits": LOGIT_COPIES * FLOAT * min(LOGITS, together * shape.vocabulary),
        "batch": COLUMNS * batch,
    }
    if hardware.world > 1:
        edges = shape.parameters - shape.layers * shape.layer  # embedding, head and last norm, gathered together
        training["gathered"] = FLOAT * (2 * shape.layer + edges)  # a layer, and the next one on its way
        training["whole gradients"] = FLOAT * (shape.layer + edges)  # before they are reduced
    asked = [drawn(config)[0], *scored(config).values(), *filtered(config).values()]
    decoded = min(engine.at_once, max(share(each.responses, config) for each in asked))
    model = {"engine": size * shape.parameters}
    fixed = {} if engine.cache is None else {"KV cache": engine.cache}
    return Memory(
        training={**held, **({} if engine.sleeps else model | fixed), **training},
        generation={
            **held,
            **model,
            **(fixed or {"KV cache": decoded * longest(config) * cached(shape, size)}),
            "sampling": decoded * shape.vocabulary * 24,  # logits and log p in float32, two copies in float64
        },
        beside=beside,
    )


def on_disk(shape: Shape, config: Config, needs: frozenset[str]) -> tuple[int, int]:
    """Bytes of a checkpoint, and of all that a finished cell leaves."""
    critic = shape.critic if "values" in needs else 0
    checkpoint = 3 * FLOAT * (shape.parameters + critic)
    return checkpoint, checkpoint + FLOAT * shape.parameters * config.checkpoint.save_model


@dataclass(frozen=True)
class Footprint:
    """One model, trained by the methods that ask for the same."""

    model: str
    shape: Shape
    methods: tuple[str, ...]
    needs: Needs
    memory: Memory
    engine: Engine
    together: int  # sequences of full length that it decodes at once


# Time, where nothing has been measured


@dataclass(frozen=True)
class Speed:
    """Assumed, and nothing more."""

    flops: float  # a second, in matrix products
    bandwidth: float  # bytes a second
    layer: float  # seconds that a layer takes in a decoding step however small it is
    of: str


SPEEDS = {
    "cuda": Speed(2e14, 1.5e12, 1e-4, "a GPU of the H100 class"),
    "cpu": Speed(2e10, 5e9, 1e-4, "a CPU core"),
}


def generating(shape: Shape, responses: int, config: Config, size: int, speed: Speed, engine: Engine) -> float:
    """Seconds: a decoding step reads all weights and the cache of all sequences, half full on average."""
    mine = share(responses, config)
    decoded = min(mine, max(fitting(shape, config, size, engine), 1))
    half = (config.rollout.max_prompt_tokens or 0) + config.rollout.max_new_tokens / 2
    read = size * shape.parameters + decoded * half * cached(shape, size)
    step = shape.layers * speed.layer + read / speed.bandwidth + 2 * decoded * shape.parameters / speed.flops
    return ceil(mine / decoded) * config.rollout.max_new_tokens * step


def updating(shape: Shape, config: Config, needs: frozenset[str], speed: Speed) -> float:
    """Seconds of one step's passes: two operations a weight and token forward, once more where layers are recomputed,
    and four backward."""
    passes = 2 + (8 if config.hardware.recompute else 6) * config.train.epochs
    operations = (passes + 2 * ("ref_logp" in needs)) * shape.parameters + passes * ("values" in needs) * shape.critic
    return share(trained(config).responses, config) * longest(config) * operations / speed.flops


def stepping(shape: Shape, config: Config, needs: frozenset[str], size: int, speed: Speed, engine: Engine) -> float:
    """Seconds of one step that generates as much as it may."""
    at_once, batches = drawn(config)
    sampling = generating(shape, at_once.responses, config, size, speed, engine)
    return batches * sampling + updating(shape, config, needs, speed)


def seconds(shape: Shape, config: Config, needs: frozenset[str], size: int, speed: Speed, engine: Engine) -> float:
    """Returns the seconds of a cell that generates as much as it may, without the filter that cells share."""
    step = stepping(shape, config, needs, size, speed, engine)
    evaluation = sum(generating(shape, each.responses, config, size, speed, engine) for each in scored(config).values())
    return config.train.steps * step + evaluations(config) * evaluation
