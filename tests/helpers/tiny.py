"""Tiny random models, an engine for each, and the difference of its log-probabilities to the model's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from harness.methods.batch import Rollout
from harness.rollout.protocol import Engine
from harness.rollout.vllm import VllmEngine

EOS = 3
SIZES = {"vocab_size": 83, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 256}
SIZES |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen2-tied": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen2-untied": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, tie_word_embeddings=False)),
    "qwen3-tied": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, tie_word_embeddings=True)),
    "qwen3-untied": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, tie_word_embeddings=False)),
}
GIVEN = {**SIZES, "bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": 0}
OTHERS: dict[str, Callable[[], PreTrainedModel]] = {
    "gemma3": lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**GIVEN, sliding_window=16)),
    "granite": lambda: transformers.GraniteForCausalLM(transformers.GraniteConfig(**GIVEN, logits_scaling=8.0)),
    "llama-biases": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GIVEN, attention_bias=True)),
    "mistral-window": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**GIVEN, sliding_window=16)),
    "phi3": lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**GIVEN)),
}
# Ragged; two of them share more than one block of the cache (128 tokens on a CPU).
LONG = [(7 * i) % 80 + 1 for i in range(150)]
PROMPTS = [[1, 2], [4, 5, 6, 7, 1, 11], [*LONG, 9], [*LONG, 12, 14]]
SEEDS = [11, 12, 13, 14]


def randomize(model: PreTrainedModel, seed: int, scale: float = 0.2) -> None:
    """Give every weight a random value: biases are not 0, norms are not 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            centre = 0 if model.config.model_type == "gemma3_text" else 1  # Gemma adds 1 in the forward pass
            weight.copy_(centre + 0.2 * noise if "norm" in name else scale * noise)


def build(name: str, seed: int = 0, scale: float = 0.2) -> PreTrainedModel:
    model = (MODELS | OTHERS)[name]().eval()
    randomize(model, seed, scale)
    return model


def engine_of(model: PreTrainedModel, folder: Path, dtype: torch.dtype = torch.float32) -> VllmEngine:
    """Return an engine that starts with other weights, so that nothing is right before the first load."""
    torch.manual_seed(0)
    type(model)(model.config).save_pretrained(folder)
    engine = VllmEngine(folder, [EOS], "cpu", dtype, cache_gib=0.1)
    engine.load(model)
    return engine


def generate(engine: Engine, n: int = 6, temperature: float = 0.8, length: int = 12) -> list[list[Rollout]]:
    return engine.generate(PROMPTS, n, seeds=SEEDS, temperature=temperature, max_new_tokens=length)


def tokens_of(groups: Sequence[Sequence[Rollout]]) -> list[list[list[int]]]:
    return [[rollout.response for rollout in group] for group in groups]


@torch.no_grad()
def worst_difference(model: PreTrainedModel, groups: Sequence[Sequence[Rollout]], temperature: float = 0.8) -> float:
    """Return the largest difference of the engine's log-probabilities to a full forward pass of the model."""
    worst = 0.0
    for rollout in (rollout for group in groups for rollout in group):
        logits = model(input_ids=torch.tensor([rollout.prompt + rollout.response])).logits[0]
        logp_TV = torch.log_softmax(logits[len(rollout.prompt) - 1 : -1].double() / temperature, -1)
        exact_T = logp_TV.gather(1, torch.tensor(rollout.response)[:, None])[:, 0]
        worst = max(worst, (torch.tensor(rollout.logp, dtype=torch.float64) - exact_T).abs().max().item())
    return worst
