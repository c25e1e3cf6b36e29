"""Adapters (LoRA): exact gradients, an engine that samples with them, resumed runs, saved models, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from float64 import compute_in_float64
from tiny import MODELS, randomize, worst_difference
from torch import Tensor
from trainers import build, check_resumed, planned, records
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from harness.base.errors import CellFailure, UserError
from harness.base.shape import LINEAR
from harness.config import Hardware, Lora, Train
from harness.methods.batch import Rollout, TokenBatch
from harness.rollout.embedded import EmbeddedEngine
from harness.rollout.merged import MergedWeights, factored_weights
from harness.rollout.proof import check_engine_weights
from harness.train import parts
from harness.train.policy import Critic, Policy
from harness.train.weights import load_model

pytest.importorskip("peft")

SETTINGS = Lora(rank=3, alpha=5)
SCALE = 5 / 3
TEMPERATURE = 0.8
SHORT = "train.lora.rank=4"
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a random model of two layers, tied, with grouped heads and biases."""
    model = MODELS["qwen2-tied"]()
    randomize(model, 0)
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def build_learner(
    kind: type[Policy | Critic], folder: Path, lora: Lora | None, dtype: torch.dtype = torch.float32, **hardware: Any
) -> Policy | Critic:
    """Return a policy or a critic whose adapters, and the critic's output, are not zero."""
    third = TEMPERATURE if kind is Policy else 1e-3
    train = Train(lora=lora, lr=1e-2)
    learner = kind(folder, train, third, "cpu", dtype, Hardware(device="cpu", **hardware))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in learner.module.named_parameters():
            if ".lora_" in name or name.startswith("head."):
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    return learner


def a_batch() -> TokenBatch:
    groups = []
    for number, prompt in enumerate(([5, 6], [7, 8, 9, 10])):
        responses = [[11 + number, 12, 13], [14, 15], [16, 17, 18, 19 + number]]
        groups.append([Rollout(prompt, response, [-1.0] * len(response), True) for response in responses])
    return TokenBatch.of(groups, [0.0] * 6, 4, "cpu")


def add_gradients(learner: Policy | Critic, batch: TokenBatch) -> None:
    """Add the gradients of a sum over all tokens, of log p and entropy or of values."""
    for part in learner.micro_batches(batch):
        factors_T = 1.0 + part.index_T
        if isinstance(learner, Policy):
            stats = learner.current(part, frozenset({"entropy_grad"}))
            assert stats.entropy is not None
            learner.backward(((stats.logp + 0.3 * stats.entropy) * factors_T).sum())
        else:
            learner.backward((learner.current(part) ** 2 * factors_T).sum())


# Gradients


@pytest.mark.parametrize("settings", [{}, {"recompute": True}, {"micro_tokens": 9}, {"dtype": torch.bfloat16}], ids=str)
@pytest.mark.parametrize("kind", [Policy, Critic])
def test_gradients_by_the_chain_rule(kind: type[Policy | Critic], settings: dict[str, Any], folder: Path) -> None:
    """With W + s B A in the place of W: dL/dB = s dL/dW A', dL/dA = s B' dL/dW; in micro-batches, too."""
    adapted = build_learner(kind, folder, SETTINGS, **settings)
    full = build_learner(kind, folder, None)
    for learner in (adapted, full):
        learner.dtype = torch.float32  # no autocast: in float64, but with the weights that are left of bfloat16
        compute_in_float64(learner.network)
    merged = MergedWeights(adapted.module)
    with torch.no_grad():
        for name, weight in full.module.named_parameters():
            weight.copy_(merged[name])
    for learner in (adapted, full):
        add_gradients(learner, a_batch())
    whole = dict(full.module.named_parameters())
    layers = [name for name, module in adapted.module.named_modules() if hasattr(module, "lora_A")]
    assert len(layers) == 2 * len(LINEAR)
    for name in layers:
        layer: Any = adapted.module.get_submodule(name)
        A, B = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        by_weight = whole[f"{name}.weight"].grad
        assert by_weight is not None
        assert by_weight.abs().max() > 1e-3
        torch.testing.assert_close(B.grad, SCALE * by_weight @ A.detach().T, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(A.grad, SCALE * B.detach().T @ by_weight, rtol=1e-10, atol=1e-12)
    trained = {name for name in adapted.weights if ".lora_" not in name}
    assert trained == (set() if kind is Policy else {"head.weight", "head.bias"})
    for name in trained:
        torch.testing.assert_close(adapted.weights[name].grad, whole[name].grad, rtol=1e-10, atol=1e-12)
    frozen = dict(adapted.module.named_parameters()).keys() - adapted.weights.keys()
    assert all(adapted.module.get_parameter(name).grad is None for name in frozen)


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_are_those_of_the_merged_model(dtype: torch.dtype, folder: Path, tmp_path: Path) -> None:
    policy = build_learner(Policy, folder, SETTINGS, dtype)
    assert isinstance(policy, Policy)
    policy.dtype = torch.float32
    policy.save(tmp_path / "saved")
    assert {file.name for file in (tmp_path / "saved").iterdir()} == {file.name for file in folder.iterdir()}
    merged = Policy(tmp_path / "saved", Train(), TEMPERATURE, "cpu", torch.float32, Hardware(device="cpu"))
    for learner in (policy, merged):
        compute_in_float64(learner.network)
    with torch.no_grad():  # without the rounding of the saved weights
        for name, weight in merged.module.named_parameters():
            exact = MergedWeights(policy.module)[name]
            torch.testing.assert_close(weight, exact, rtol=1e-6, atol=1e-7)
            weight.copy_(exact)
    ours, theirs = policy.stats(a_batch()), merged.stats(a_batch())
    torch.testing.assert_close(ours.logp, theirs.logp, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.entropy, theirs.entropy, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_saved_model_is_the_rounded_base_with_adapters(dtype: torch.dtype, folder: Path, tmp_path: Path) -> None:
    """In float32, bit for bit, and so does plain transformers read it."""
    policy = build_learner(Policy, folder, SETTINGS, dtype)
    assert isinstance(policy, Policy)
    policy.save(tmp_path / "saved")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert saved.dtype == torch.float32
    for name, weight in load_model(folder).named_parameters():
        place, _, kind = name.rpartition(".")
        layer: Any = policy.module.get_submodule(place)
        rounded, held = weight.detach().to(dtype), getattr(getattr(layer, "base_layer", layer), kind)
        assert held.dtype == dtype
        assert torch.equal(held, rounded)
        expected = rounded.float()
        if hasattr(layer, "lora_A") and kind == "weight":
            expected += layer.lora_B["default"].weight @ layer.lora_A["default"].weight * SCALE
        assert torch.equal(saved.get_parameter(name), expected), name
    assert all(weight.dtype == torch.float32 for weight in policy.weights.values()), "adapters have masters"


@pytest.mark.parametrize("dtype", DTYPES)
def test_logp_without_adapters_is_that_of_the_base_model(dtype: torch.dtype, folder: Path, tmp_path: Path) -> None:
    policy = build_learner(Policy, folder, SETTINGS, dtype)
    assert isinstance(policy, Policy)
    rounded = load_model(folder).to(dtype).float()
    rounded.save_pretrained(tmp_path / "rounded")
    base = Policy(tmp_path / "rounded", Train(), TEMPERATURE, "cpu", dtype, Hardware(device="cpu"))
    assert torch.equal(policy.logp_without_adapters(a_batch()), base.stats(a_batch()).logp)
    assert not torch.equal(policy.stats(a_batch()).logp, base.stats(a_batch()).logp), "adapters are there again"
    assert all(weight.requires_grad for weight in policy.weights.values())


def test_first_adapters_depend_on_the_seed_alone(folder: Path) -> None:
    def adapters(seed: int) -> Mapping[str, Tensor]:
        return Policy(folder, train, 1.0, "cpu", torch.float32, Hardware(device="cpu"), seed=seed).weights

    train = Train(lora=SETTINGS)
    state = torch.random.get_rng_state()
    first = adapters(1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(99)
    again, other = adapters(1), adapters(2)
    for name, weight in first.items():
        assert torch.equal(again[name], weight)
        assert torch.equal(other[name], weight) == ("lora_B" in name), name
        assert ("lora_B" in name) == (not weight.any()), "the model before training is the base model"


def test_factors_are_of_the_merged_weights(folder: Path) -> None:
    policy = build_learner(Policy, folder, SETTINGS)
    compute_in_float64(policy.network)
    merged, apart = MergedWeights(policy.module), factored_weights(policy.module)
    for name, weight in merged.items():
        product: Tensor | int = 0
        if name in merged.adapted:
            layer = name.removesuffix(".weight")
            product = apart.pop(f"{layer}.lora_B") @ apart.pop(f"{layer}.lora_A")
        torch.testing.assert_close(apart.pop(name) + product, weight, rtol=1e-12, atol=1e-12)
    assert not apart


# The engine


def sampled(engine: EmbeddedEngine) -> list[list[Rollout]]:
    return engine.generate([[1, 2], [4, 5, 6, 7]], 4, seeds=[11, 12], temperature=TEMPERATURE, max_new_tokens=8)


@pytest.mark.parametrize("name", ["qwen2-tied", "qwen3-untied"])
def test_updates_arrive_in_the_engine(name: str, tmp_path: Path) -> None:
    """Its log-probabilities after an update are those of the merged model, and not those from before."""
    model = MODELS[name]()
    randomize(model, 0)
    model.save_pretrained(tmp_path / "base")
    policy = Policy(tmp_path / "base", Train(lora=SETTINGS), TEMPERATURE, "cpu", torch.float32, Hardware(device="cpu"))
    engine = EmbeddedEngine([3], "cpu", torch.float32)
    engine.load(policy.module)
    before = model.eval()
    for update in range(2):
        groups = sampled(engine)
        assert worst_difference(before, groups) < 1e-4
        add_gradients(policy, a_batch())
        policy.apply(0.05)
        with pytest.raises(CellFailure, match="the load was skipped"):
            check_engine_weights(engine, policy.module, torch.float32, update)
        engine.load(policy.module)
        check_engine_weights(engine, policy.module, torch.float32, update)
        policy.save(tmp_path / f"saved {update}")
        after = load_model(tmp_path / f"saved {update}").eval()
        groups = sampled(engine)
        assert worst_difference(after, groups) < 1e-4
        assert worst_difference(before, groups) > 0.1
        before = after


def test_weights_are_merged_in_float32_and_then_rounded(folder: Path) -> None:
    policy = build_learner(Policy, folder, SETTINGS, torch.bfloat16)
    engine = EmbeddedEngine([3], "cpu", torch.bfloat16)
    engine.load(policy.module)
    check_engine_weights(engine, policy.module, torch.bfloat16, 0)
    layer: Any = policy.module.get_submodule("model.layers.1.mlp.down_proj")
    product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    exact = layer.base_layer.weight.float() + product * SCALE
    held = engine.weights({"model.layers.1.mlp.down_proj.weight": slice(None)})
    assert torch.equal(held["model.layers.1.mlp.down_proj.weight"], exact.detach().to(torch.bfloat16))


# Cells


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "dtype", "mismatch"),
    [
        ("grpo(kl_coef=0.1)+clip_b(share=0.1)", torch.bfloat16, 0.5),
        ("ppo+entropy_bonus", torch.float32, 1e-4),
        ("ce_gppo+kl_cov", torch.float32, 1e-4),
    ],
)
def test_methods_train_adapters_alone(method: str, dtype: torch.dtype, mismatch: float, tmp_path: Path) -> None:
    """The ratio of the first update is 1 after each synchronization, and the engine is the trained policy."""
    type_of_cell = f"train.dtype={str(dtype).removeprefix('torch.')}"
    trainer = build(tmp_path, method, SHORT, "train.steps=2", "train.updates=1", "train.lr=1e-2", type_of_cell)
    base = load_model(trainer.parts.policy.module.config.name_or_path)
    trainer.run(lambda step: None)
    for record in records(tmp_path)[1:]:
        assert record["ratio/max"] == pytest.approx(1, abs=1e-3)
        assert record["ratio/min"] == pytest.approx(1, abs=1e-3)
        assert record["mismatch/max"] < mismatch
    merged = MergedWeights(trainer.policy.module)
    for name, weight in base.named_parameters():
        rounded = weight.to(dtype)
        assert torch.equal(merged.unmerged[name], rounded), "the base is frozen"
        adapted = name.endswith(tuple(f"{layer}.weight" for layer in LINEAR))
        assert torch.equal(merged[name], rounded) != adapted, name
    reference = trainer.parts.reference
    assert reference is (trainer.policy if "kl_coef" in method else None), "in no memory of its own"


@pytest.mark.long
def test_resumed_run_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    checkpoint = ("checkpoint.every=1", "checkpoint.keep_last=true")
    settings = (SHORT, "train.steps=3", "train.lr=1e-2", "train.dtype=bfloat16", "rollout.lag=1", *checkpoint)
    whole = check_resumed(tmp_path, "ppo", *settings, killed_at=2)
    newest = whole.checkpoints.latest()
    assert newest is not None
    assert all(".lora_" in name or name.startswith("critic.") for name in newest.names), "no frozen weight"
    assert {name for name in newest.of("critic") if ".lora_" not in name and name.startswith("weight.")} == {
        "weight.head.weight",
        "weight.head.bias",
    }


def test_engine_of_adapters() -> None:
    assert planned(SHORT).spec.config.train.lora == Lora(rank=4)
    engines = {name: planned(SHORT, f"rollout.engine={name}").settled.rollout.engine for name in ("auto", "vllm")}
    assert engines == {"auto": "embedded", "vllm": "vllm"}


# Refusals


def test_float32_on_a_gpu_is_refused_with_vllm() -> None:
    given = (SHORT, "hardware.device=cuda", "train.dtype=float32")
    with pytest.raises(UserError, match=r"train\.dtype is float32, in which vLLM cannot .*train\.dtype=bfloat16 or"):
        _ = planned(*given, "rollout.engine=vllm").settled
    assert planned(*given, "rollout.engine=embedded").settled.train.dtype == "float32"


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    text = (parts.models.MODELS / "qwen2.5-7b-instruct.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("architecture: qwen2", "architecture: phi3"))
    cell = planned(SHORT, model=str(tmp_path / "mine.yaml"))
    with pytest.raises(UserError, match=r"\(model_type\) is 'phi3'; with train.lora, allowed: llama, mistral, qwen2"):
        _ = cell.settled


def test_larger_adapters_than_a_models_layers_are_refused_when_it_is_read(folder: Path) -> None:
    with pytest.raises(UserError, match=r"train\.lora\.rank is 40, but k_proj of the model has only 32 outputs"):
        Policy(folder, Train(lora=Lora(rank=40)), 1.0, "cpu", torch.float32, Hardware(device="cpu"))


def test_models_without_a_known_shape_are_refused_when_they_are_read(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=41)).save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=r"\(model_type\) is 'gpt2'; with train.lora, allowed: llama, mistral, qwen2, qwen3$"
    ):
        Policy(tmp_path, Train(lora=SETTINGS), 1.0, "cpu", torch.float32, Hardware(device="cpu"))
