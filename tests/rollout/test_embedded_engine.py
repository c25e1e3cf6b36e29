"""The embedded engine against transformers in float64: the same distribution, and the same tokens for a seed."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tiny import EOS, SEEDS, randomize, tokens_of
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from harness.base.errors import UserError
from harness.methods.batch import Rollout
from harness.rollout.embedded import EmbeddedEngine, sample_tokens, uniforms
from harness.rollout.protocol import Engine

SIZES = {
    "vocab_size": 19,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2-tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-untied": {"model_type": "qwen2", "tie_word_embeddings": False},
    "qwen3-tied-wide-heads": {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 16},
    "llama-untied-biases": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": LLAMA3_ROPE,
    },
    "llama-yarn": {"model_type": "llama", "rope_parameters": YARN_ROPE},
    "mistral": {"model_type": "mistral", "sliding_window": None},
}
# Ragged, and longer and shorter than the 16 slots that attention reads at least.
PROMPTS = [[1, 2], [4, 5, 6, 7, 1, 11], [9], [8, 2, 6, 18, 1, 5, 5, 12, 4, 7, 2, 16, 9, 10, 1, 4, 2, 13, 17]]


def made(**stated: Any) -> PreTrainedModel:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**SIZES | stated))


def build(name: str, seed: int = 0) -> PreTrainedModel:
    model = made(**MODELS[name]).eval()
    randomize(model, seed)
    return model


@cache
def shared(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model and its float64 copy, neither to be changed."""
    model = build(name)
    return model, copy.deepcopy(model).double()


def engine_of(model: PreTrainedModel, **options: Any) -> EmbeddedEngine:
    engine = EmbeddedEngine([EOS], **options)
    engine.load(model)
    return engine


def generate(engine: Engine, n: int = 9, temperature: float = 0.8, length: int = 14) -> list[list[Rollout]]:
    return engine.generate(PROMPTS, n, seeds=SEEDS, temperature=temperature, max_new_tokens=length)


@torch.no_grad()
def reference_logits(model: PreTrainedModel, rollout: Rollout) -> np.ndarray:
    """The logits from which each token of the response was sampled, from one forward pass over everything."""
    logits = model(input_ids=torch.tensor([rollout.prompt + rollout.response])).logits[0]
    return logits[len(rollout.prompt) - 1 : -1].double().numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def numbers(seed: int, n: int, length: int) -> np.ndarray:
    torch.manual_seed(seed)
    return torch.rand(n, length, dtype=torch.float64).numpy()


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_and_tokens_are_those_of_a_full_forward_pass(name: str) -> None:
    model, exact = shared(name)
    groups = generate(engine_of(model), temperature=0.8)
    assert [len(group) for group in groups] == [9] * 4
    for prompt, seed, group in zip(PROMPTS, SEEDS, groups, strict=True):
        for rollout, numbers_T in zip(group, numbers(seed, 9, 14), strict=True):
            assert rollout.prompt == prompt
            logp_TV = log_softmax(reference_logits(exact, rollout) / 0.8)
            assert rollout.logp == pytest.approx(logp_TV[range(len(rollout.response)), rollout.response], abs=1e-5)
            cumulative_TV = np.exp(logp_TV).cumsum(-1)
            replayed = [int(np.argmax(c > u)) for c, u in zip(cumulative_TV, numbers_T, strict=False)]
            assert rollout.response == replayed


def gib_of_sequence(model: PreTrainedModel) -> float:
    """Return the size of the longest sequence's keys and values: of 18 + 14 - 1 tokens, in two blocks of slots."""
    attention = model.model.layers[0].self_attn
    outputs = attention.k_proj.out_features + attention.v_proj.out_features
    return float(len(model.model.layers) * outputs * 32 * 4 / 2**30)


@pytest.mark.parametrize(("sequences", "rows"), [(None, 36), (512, 36), (20.9, 18), (9, 9), (4.9, 4), (1, 1), (0.1, 1)])
def test_cache_is_at_most_what_it_may_be(sequences: float | None, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = shared("qwen2-tied")[0]
    engine = engine_of(model, cache_gib=None if sequences is None else sequences * gib_of_sequence(model))
    sizes = set()
    prefill = engine._prefill

    def watched(cache: Tensor, *rest: Any) -> Tensor:
        sizes.add(cache.nbytes / 2**30 / gib_of_sequence(model))
        return prefill(cache, *rest)

    monkeypatch.setattr(engine, "_prefill", watched)
    generate(engine)
    assert max(sizes) == rows


@pytest.mark.parametrize("name", ["qwen2-tied", "qwen3-tied-wide-heads"])
def test_generate_with_any_neighbors(name: str) -> None:
    model = shared(name)[0]
    together = generate(engine_of(model))
    for limit in (0.5, 1, 4, 9, 20):  # groups cut in pieces, one group at a time, two
        limited = engine_of(model, cache_gib=limit * gib_of_sequence(model))
        assert tokens_of(generate(limited)) == tokens_of(together)
    engine = engine_of(model)
    backwards = engine.generate(PROMPTS[::-1], 9, seeds=SEEDS[::-1], temperature=0.8, max_new_tokens=14)
    assert tokens_of(backwards[::-1]) == tokens_of(together)
    for prompt, seed, group in zip(PROMPTS, SEEDS, together, strict=True):
        [alone] = engine.generate([prompt], 9, seeds=[seed], temperature=0.8, max_new_tokens=14)
        assert tokens_of([alone]) == tokens_of([group])
        for a, b in zip(alone, group, strict=True):
            assert a.logp == pytest.approx(b.logp, abs=1e-5)


def test_generate_with_other_seeds() -> None:
    engine = engine_of(shared("qwen2-tied")[0])
    a, b, c = engine.generate([[1, 2]] * 3, 9, seeds=[5, 6, 5], temperature=0.8, max_new_tokens=14)
    assert a == c
    assert tokens_of([a]) != tokens_of([b])
    assert engine.generate([], 9, seeds=[], temperature=0.8, max_new_tokens=14) == []


@pytest.mark.parametrize("name", ["qwen2-tied", "qwen2-untied", "qwen3-tied-wide-heads"])
def test_temperature_zero_takes_the_likeliest_token(name: str) -> None:
    model, exact = shared(name)
    for group in generate(engine_of(model), n=2, temperature=0):
        assert group[0] == group[1]
        assert group[0].response == reference_logits(exact, group[0]).argmax(-1).tolist()
        assert set(group[0].logp) == {0.0}


@pytest.mark.parametrize("name", ["qwen2-tied", "qwen2-untied", "qwen3-tied-wide-heads"])
def test_load_takes_over_changed_weights_into_the_same_buffers(name: str) -> None:
    model = build(name)
    engine = engine_of(model)
    before = generate(engine)
    places = {key: buffer.data_ptr() for key, buffer in engine.buffers.items()}
    randomize(model, seed=1)
    assert generate(engine) == before  # what it holds is its own
    engine.load(model)
    assert {key: buffer.data_ptr() for key, buffer in engine.buffers.items()} == places
    assert generate(engine) == generate(engine_of(model))
    assert tokens_of(generate(engine)) != tokens_of(before)


def tokens_read(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of tokens of each pass from here on."""
    read: list[int] = []
    hidden = engine._hidden

    def counted(tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        read.append(len(tokens))
        return hidden(tokens, *rest)

    monkeypatch.setattr(engine, "_hidden", counted)
    return read


def test_prompts_and_all_that_samples_have_in_common_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(shared("qwen2-tied")[0])
    read = tokens_read(engine, monkeypatch)
    groups = [[r.response for r in group] for group in generate(engine, n=40)]
    lengths = [len(response) for group in groups for response in group]
    assert read[0] == len(PROMPTS) * max(map(len, PROMPTS))
    assert len(read) == max(lengths)
    for step, rows in enumerate(read[1:], start=1):
        states = [{tuple(response[:step]) for response in group if len(response) > step} for group in groups]
        assert rows == sum(map(len, states))
    assert max(read[1:]) < len(lengths)


def test_generate_reads_a_beginning_that_all_prompts_share_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(shared("qwen3-tied-wide-heads")[0])
    beginning = [1 + number % 18 for number in range(40)]
    prompts = [[*beginning, *prompt] for prompt in PROMPTS]

    def sampled(some: slice) -> list[list[Rollout]]:
        return engine.generate(prompts[some], 9, seeds=SEEDS[some], temperature=0.8, max_new_tokens=14)

    alone = [group for number in range(len(prompts)) for group in sampled(slice(number, number + 1))]
    read = tokens_read(engine, monkeypatch)
    together = sampled(slice(None))
    assert read[:2] == [40, len(PROMPTS) * max(map(len, PROMPTS))]
    assert tokens_of(together) == tokens_of(alone)
    for one, other in zip(together, alone, strict=True):
        for rollout, expected in zip(one, other, strict=True):
            assert rollout.logp == pytest.approx(expected.logp, abs=1e-5)


def test_uninitialised_memory_is_never_read() -> None:
    engine = engine_of(shared("qwen2-tied")[0])

    def short() -> list[list[Rollout]]:
        return engine.generate([[9], [1, 2]], 9, seeds=[1, 2], temperature=0.8, max_new_tokens=14)

    expected = short()
    torch.use_deterministic_algorithms(True)  # fills new memory with values that are not numbers
    try:
        assert short() == expected
    finally:
        torch.use_deterministic_algorithms(False)


def test_sample_tokens_of_probability_zero() -> None:
    row = torch.tensor([-torch.inf, 0.0, -torch.inf, -torch.inf, 1.0, -torch.inf])
    p = 1 / (1 + np.e)
    edges = torch.tensor([0.0, 5e-324, p - 1e-6, p + 1e-6, 1 - 2**-53], dtype=torch.float64)
    tokens, logp = sample_tokens(row[None], 1.0, torch.zeros(5, dtype=torch.long), edges)
    assert tokens.tolist() == [1, 1, 1, 4, 4]
    assert logp.tolist() == pytest.approx([np.log(p)] * 3 + [np.log(1 - p)] * 2, abs=1e-6)
    many = sample_tokens(row[None], 0.5, torch.zeros(10_000, dtype=torch.long), uniforms(0, 1, 10_000)[0])[0]
    assert set(many.tolist()) == {1, 4}


def test_sample_tokens_of_the_largest_number() -> None:
    logits = torch.randn(200, 1000, generator=torch.Generator().manual_seed(0))
    tokens, logp = sample_tokens(logits, 1.0, torch.arange(200), torch.full((200,), 1 - 2**-53, dtype=torch.float64))
    assert set(tokens.tolist()) == {999}
    assert logp.tolist() == pytest.approx(torch.log_softmax(logits.double(), -1)[:, -1].tolist(), abs=1e-5)


def test_logits_that_are_not_finite_are_named() -> None:
    model = build("qwen2-tied")
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(FloatingPointError, match="not finite"):
        generate(engine_of(model))


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"model_type": "gpt2"}, "model_type.* is 'gpt2'.*qwen2"),
        ({"model_type": "mistral", "sliding_window": 8}, "sliding_window is 8"),
        ({"model_type": "qwen2", "hidden_act": "gelu"}, "hidden_act is 'gelu'; allowed: silu"),
        ({"model_type": "llama", "rope_parameters": DYNAMIC_ROPE}, "rope_type is 'dynamic'; allowed: default, linear"),
    ],
)
def test_load_refuses_other_models(stated: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        EmbeddedEngine([EOS]).load(made(**stated))


def test_generate_refuses_a_negative_temperature() -> None:
    with pytest.raises(UserError, match="temperature is -1"):
        generate(engine_of(shared("qwen2-tied")[0]), temperature=-1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", MODELS)
def test_cuda_samples_what_the_cpu_samples(name: str) -> None:
    model, exact = shared(name)
    expected = generate(engine_of(model), n=40)
    engine = EmbeddedEngine([EOS], "cuda")
    engine.load(model)
    assert tokens_of(generate(engine, n=40)) == tokens_of(expected)
    half = EmbeddedEngine([EOS], "cuda", torch.bfloat16)
    half.load(model)
    for group in generate(half):
        for rollout in group:
            logp_TV = log_softmax(reference_logits(exact, rollout) / 0.8)
            assert rollout.logp == pytest.approx(logp_TV[range(len(rollout.response)), rollout.response], abs=0.3)
