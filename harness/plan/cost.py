"""The cost of a cell by closed forms: responses and tokens, and bytes; without torch, network or data.

docs/paper.md says what is counted when, and what is left out.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import tasks
from harness.base.shape import LINEAR, Shape, recomputed_layers
from harness.config import ADAMW, ADAMW8BIT, Config, Train
from harness.rollout.choice import EMBEDDED_SEQUENCES, VLLM_CPU_CACHE_GIB, VLLM_GPU_SHARE, VLLM_SEQUENCES, vllm_rank
from tasks.data import cache

Needs = frozenset[str]  # what a method needs that takes memory of its own: values, ref_logp

FLOAT = 4  # bytes of float32, the type of trained weights, gradients, moments and statistics

# The number of logits that the token statistics hold at once, by device. It repeats tokens/streaming.py, which imports
# torch; a test ties the two.
LOGITS = {"cpu": 2**17, "cuda": 2**25}
LOGIT_COPIES = 6  # float32 copies of these at the peak of a backward pass through logp and entropy (measured)
# Bytes of AdamW's two moments of a parameter. With 8 bits each is a code, and a block of 256 has a scale; the few
# parameters in weights of under 4,096 numbers, which stay in float32, are left out.
MOMENTS = {ADAMW: 2 * FLOAT, ADAMW8BIT: 2 * (1 + FLOAT / 256)}
COLUMNS = 64  # bytes of ids, statistics and weights for each token of a rollout batch
PROGRAM = 5 * 2**27  # bytes of Python with torch and transformers, before there is a model: measured 0.51 GiB


def per_rank(number: int, config: Config) -> int:
    """Return one rank's part of a quantity that a cell's ranks share evenly."""
    return ceil(number / config.hardware.world)


# Responses


@dataclass(frozen=True)
class ResponseCount:
    """A number of problems, with the same number of responses to each."""

    problems: int
    samples: int
    known: bool = True  # False: the number of problems is assumed

    @property
    def responses(self) -> int:
        return self.problems * self.samples


def step_responses(config: Config) -> ResponseCount:
    """Return the responses that one training step uses."""
    return ResponseCount(config.train.prompts, config.train.group)


def draws_per_step(config: Config) -> tuple[ResponseCount, int]:
    """Return the responses that one draw samples for a step, and the highest number of draws."""
    resample, step = config.train.resample, step_responses(config)
    if resample is None:
        return step, 1
    return ResponseCount(int(resample.candidates(step.problems)), step.samples), resample.max_batches


def evaluation_responses(config: Config) -> dict[str, ResponseCount]:
    """Return the responses of one evaluation, by task."""
    counts = {}
    for spec in config.eval.tasks or config.tasks:
        task = tasks.build_task(spec, config.plugins)
        name = tasks.evaluation_name(task)
        settings = config.eval.of(name)
        number, known = (settings.problems, True) if settings.problems else cache.problem_count(task, settings.split)
        counts[name] = ResponseCount(number, settings.samples, known)
    return counts


def evaluation_count(config: Config) -> int:
    every, steps = config.eval.every, config.train.steps
    between = range(every, steps, every) if every else ()
    return len({0, steps, *between})


def filter_responses(config: Config) -> dict[str, ResponseCount]:
    """Return the responses that the difficulty filter samples from each model, once for all cells, by task."""
    settings = config.train.filter
    if settings is None:
        return {}
    counts = {}
    for spec in config.tasks:
        task = tasks.build_task(spec, config.plugins)
        number, known = cache.problem_count(task, "train")
        counts[task.name] = ResponseCount(number, settings.n, known)
    return counts


# Engines


@dataclass(frozen=True)
class EngineLimits:
    """The limits of a rank's engine, which holds the whole model in the compute type."""

    at_once: int  # sequences that it decodes at once, at most
    cache: int | None  # bytes that are always reserved for keys and values; None: as many as the sequences need
    sleeps: bool  # whether it frees its weights and cache while the policy is updated, unless it samples then
    adapters: int = 0  # bytes of adapters that it holds beside the model


COMPUTE_BYTES = {"float32": 4, "bfloat16": 2}
EMBEDDED = EngineLimits(EMBEDDED_SEQUENCES, cache=None, sleeps=False)


def engine_limits(shape: Shape, config: Config, size: int, gpu: int) -> EngineLimits:
    """Return the limits of a settled configuration's engine; `gpu`: the bytes of each process's GPU, if it has one."""
    cache_gib, lora, adapters = config.hardware.cache_gib, config.train.lora, 0
    on_cpu = config.hardware.device == "cpu"
    cache_bytes = None if cache_gib is None else int(cache_gib * 2**30)
    if config.rollout.engine != "vllm":
        if cache_bytes is None:
            return EMBEDDED
        fit = cache_bytes // (longest_sequence(config) * cache_bytes_per_token(shape, size))
        return dataclasses.replace(EMBEDDED, at_once=min(max(fit, 1), EMBEDDED_SEQUENCES))
    if lora is not None:
        # As they arrive, and in a slot for the next rank and for every layer, since vLLM joins some.
        adapters = size * (shape.adapters(lora.rank, lora.targets) + shape.adapters(vllm_rank(lora.rank), LINEAR))
    if cache_bytes is None and on_cpu:
        cache_bytes = int(VLLM_CPU_CACHE_GIB * 2**30)
    elif cache_bytes is None:
        cache_bytes = max(int(VLLM_GPU_SHARE * gpu) - size * shape.parameters - adapters, 0)
    return EngineLimits(VLLM_SEQUENCES, cache_bytes, sleeps=not on_cpu, adapters=adapters)


def cache_bytes_per_token(shape: Shape, size: int) -> int:
    """Return the bytes of one token's keys and values."""
    return 2 * shape.layers * shape.keys * size


def longest_sequence(config: Config) -> int:
    """Return the tokens of the longest prompt and response; of the response alone if the prompt's are unknown."""
    return (config.rollout.max_prompt_tokens or 0) + config.rollout.max_new_tokens


def sequences_at_once(shape: Shape, config: Config, size: int, engine: EngineLimits) -> int:
    """Return the number of full-length sequences that a rank decodes at once; the others wait."""
    if engine.cache is None:
        return engine.at_once
    return min(engine.at_once, engine.cache // (longest_sequence(config) * cache_bytes_per_token(shape, size)))


# Bytes


@dataclass(frozen=True)
class Memory:
    """Bytes on the device of each rank. The larger of training and generation counts, since they alternate. With
    `rollout.lag` both are in memory at once, and training has the engine's bytes, too."""

    training: dict[str, int]
    generation: dict[str, int]
    main_memory: int  # bytes of the machine's main memory for each rank

    @property
    def peak(self) -> int:
        return max(sum(self.training.values()), sum(self.generation.values()))

    def needed(self, device: str) -> int:
        """Return the bytes that a rank needs where it computes: on a CPU all is in the main memory."""
        return self.peak + self.main_memory if device == "cpu" else self.peak


def kept_layers(shape: Shape, recompute: float) -> int:
    """Return the layers whose activations are in memory at once: those that are not recomputed, or the one that is.

    The first layers are recomputed, when the backward pass has released the others.
    """
    return max(shape.layers - recomputed_layers(shape.layers, recompute), 1)


def activation_bytes(shape: Shape, size: int, recompute: float, *, sharded: bool = False) -> int:
    """Return the bytes that torch keeps of one token for the backward pass.

    For each layer it keeps: for each of the two norms, input and scaled input in float32, and their casts for each of
    five projections or (in float32) the two results; queries, keys, values and the attention output; four vectors of
    the feed-forward width; one number for each head and each norm. Norms of queries and keys keep theirs. At the end:
    the last norm's input, scaled input and result.

    Sharded weights are gathered in the compute type, which is that of all vectors then, and nothing is cast: a norm
    keeps its input in float32, scaled input and result. A layer that is recomputed (a share of them) keeps its input,
    and the rest only during its own backward pass.
    """
    heads = shape.queries + shape.keys
    between = size if sharded else FLOAT  # of the vectors between layers
    norms = 2 * (FLOAT + 2 * size) if between == size else 4 * FLOAT + 5 * size
    layer = norms * shape.hidden + 2 * FLOAT
    layer += size * (4 * shape.mlp + 2 * heads) + FLOAT * shape.heads
    if shape.qk_norm:
        layer += (FLOAT + size) * heads + FLOAT * (shape.heads + shape.kv_heads)
    kept = kept_layers(shape, recompute)
    layers = kept * layer + (shape.layers - kept) * between * shape.hidden
    return layers + (FLOAT + 2 * between) * shape.hidden + FLOAT


def cast_bytes(shape: Shape, size: int, recompute: float) -> int:
    """Return the bytes of weights in the compute type that the backward pass needs: those of all layers, or of the one
    that is recomputed, and of the head."""
    if size == FLOAT:  # nothing is cast
        return 0
    layers = kept_layers(shape, recompute) * shape.layer if recompute else shape.body
    return size * (layers + shape.embedding)


def tokens_of_update(config: Config) -> int:
    """Return the tokens that a rank computes for an update, each prompt once for its group where that pays."""
    train, new, prompt = config.train, config.rollout.max_new_tokens, config.rollout.max_prompt_tokens or 0
    prompts = ceil(per_rank(train.prompts, config) / train.updates)
    once = config.hardware.world == 1 and not config.hardware.recompute  # else only long sequences are packed
    if once and 2 * prompt > new:
        return prompts * (prompt + train.group * new)
    return prompts * train.group * (prompt + new)


@dataclass(frozen=True)
class Parameters:
    """The numbers of trained parameters of policy and critic, and of parameters that are not trained."""

    policy: int
    critic: int
    reference: int
    frozen: int = 0  # of the models whose adapters are trained, in the compute type

    @classmethod
    def of(cls, shape: Shape, config: Config, needs: Needs) -> Parameters:
        critic = shape.critic if "values" in needs else 0
        lora = config.train.lora
        if lora is None:
            return cls(shape.parameters, critic, shape.parameters if "ref_logp" in needs else 0)
        # The reference is the policy without adapters.
        adapters, output = shape.adapters(lora.rank, lora.targets), shape.hidden + 1  # of a critic: trained as a whole
        if not critic:
            return cls(adapters, 0, 0, frozen=shape.parameters)
        return cls(adapters, adapters + output, 0, frozen=shape.parameters + critic - output)

    @property
    def trained(self) -> int:
        return self.policy + self.critic

    def moments(self, train: Train) -> int:
        return ceil(MOMENTS[train.optimizer] * self.trained)

    def checkpoint(self, train: Train) -> int:
        """Return the bytes of a checkpoint: what is trained, with its moments."""
        return FLOAT * self.trained + self.moments(train)


def memory_estimate(shape: Shape, config: Config, needs: Needs, size: int, engine: EngineLimits) -> Memory:
    """Return the memory of a method with these needs, for a compute type of `size` bytes.

    With adapters, activations are those of a model that is trained as a whole, of which not all are kept, and the casts
    of adapters are left out.
    """
    hardware, parameters = config.hardware, Parameters.of(shape, config, needs)
    masters = FLOAT * (parameters.trained + parameters.reference)
    always = {
        "weights": per_rank(masters + size * parameters.frozen, config),
        "AdamW": 0 if hardware.offload else per_rank(parameters.moments(config.train), config),
    }
    # A checkpoint is copied to main memory before it is written; with offload, the moments and a copy of all weights
    # are there too. Adapters are merged into a copy of the model, which is saved when there is no checkpoint.
    checkpoint = per_rank(parameters.checkpoint(config.train), config)
    merged = FLOAT * shape.parameters if config.train.lora is not None and config.checkpoint.save_model else 0
    main_memory = PROGRAM + max(checkpoint, merged)
    if hardware.offload:
        main_memory += checkpoint + per_rank(FLOAT * parameters.reference, config)
    sharded = hardware.world > 1
    longest = longest_sequence(config)
    batch = per_rank(step_responses(config).responses, config) * longest
    # At least one sequence, however long, and at most a minibatch.
    micro_batch = min(max(hardware.micro_tokens, longest), tokens_of_update(config))
    logits_at_once = LOGITS["cpu" if hardware.device == "cpu" else "cuda"]
    training = {
        # Policy and critic are updated in turn, so only the larger gradients count.
        "gradients": per_rank(FLOAT * max(parameters.policy, parameters.critic), config),
        "casts": 0 if parameters.frozen or sharded else cast_bytes(shape, size, hardware.recompute),
        "activations": micro_batch * activation_bytes(shape, size, hardware.recompute, sharded=sharded),
        "logits": LOGIT_COPIES * FLOAT * min(logits_at_once, micro_batch * shape.vocabulary),
        "batch": COLUMNS * batch,
    }
    if sharded:
        edges = shape.parameters - shape.layers * shape.layer  # embedding, head and last norm, gathered together
        training["gathered"] = size * (2 * shape.layer + edges)  # one layer, and the next one in transfer
        training["whole gradients"] = FLOAT * (shape.layer + edges)  # before they are reduced
    model = {"engine": size * shape.parameters + engine.adapters}
    reserved_cache = {} if engine.cache is None else {"KV cache": engine.cache}

    def sampler(responses: int) -> dict[str, int]:
        """Return the bytes of the engine while it samples."""
        decoded = min(engine.at_once, per_rank(responses, config))
        needed_cache = {"KV cache": decoded * longest * cache_bytes_per_token(shape, size)}
        # logits and log p in float32, two copies in float64
        return model | (reserved_cache or needed_cache) | {"sampling": decoded * shape.vocabulary * 24}

    drawn = draws_per_step(config)[0]
    counts = [drawn, *evaluation_responses(config).values(), *filter_responses(config).values()]
    most = max(count.responses for count in counts)
    idle = {} if engine.sleeps else model | reserved_cache
    return Memory(
        training={**always, **(sampler(drawn.responses) if config.rollout.lag else idle), **training},
        generation={**always, **sampler(most)},
        main_memory=main_memory,
    )


def disk_bytes(shape: Shape, config: Config, needs: Needs) -> tuple[int, int]:
    """Return the bytes of a checkpoint, and of all that a finished cell leaves on disk."""
    checkpoint, settings = Parameters.of(shape, config, needs).checkpoint(config.train), config.checkpoint
    return checkpoint, checkpoint * settings.keep_last + FLOAT * shape.parameters * settings.save_model


@dataclass(frozen=True)
class Footprint:
    """The memory of one model, trained by methods with the same needs."""

    model: str
    shape: Shape
    config: Config  # settled, with the tokens of the longest prompt where they are known
    methods: tuple[str, ...]
    needs: Needs
    gpu: int  # bytes of each process's GPU, known or assumed

    @property
    def size(self) -> int:
        """The bytes of a number in the compute type."""
        return COMPUTE_BYTES[self.config.train.dtype]

    @cached_property
    def engine(self) -> EngineLimits:
        return engine_limits(self.shape, self.config, self.size, self.gpu)

    @cached_property
    def memory(self) -> Memory:
        return memory_estimate(self.shape, self.config, self.needs, self.size, self.engine)

    @property
    def in_one_memory(self) -> int:
        """The bytes of the processes that share a memory: on a CPU all ranks of a cell, on a GPU one."""
        hardware = self.config.hardware
        return self.memory.needed(hardware.device) * (hardware.ranks if hardware.device == "cpu" else 1)

    @property
    def together(self) -> int:
        """The full-length sequences that the engine decodes at once."""
        return sequences_at_once(self.shape, self.config, self.size, self.engine)
