"""Adapters (LoRA) in the real vLLM: their factors arrive bit for bit, and it samples as the trainer computes."""

from __future__ import annotations

from pathlib import Path
from typing import get_args
from unittest import mock

import pytest
import torch
from tiny import EOS, build, generate
from torch import Tensor

from harness.base.errors import CellFailure
from harness.config import Hardware, Lora, Train
from harness.methods.batch import TokenBatch
from harness.rollout import vllm
from harness.rollout.choice import VLLM_RANKS
from harness.rollout.merged import adapter_factors
from harness.rollout.proof import check_engine_weights
from harness.rollout.vllm import VllmEngine
from harness.train.policy import Policy

TEMPERATURE = 0.8
STALE = "model.layers.1.self_attn.v_proj.lora_B"  # the only factor that a partial load leaves out
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# One for each architecture: of few layers and of all, of ranks with and without a slot of their size in vLLM.
CASES = {
    "qwen2-tied": ("float32", Lora(rank=3, alpha=5)),
    "qwen3-untied": ("bfloat16", Lora(rank=16, alpha=32)),
    "llama-biases": ("float32", Lora(rank=12, alpha=5, targets=["v_proj", "up_proj", "o_proj"])),
    "mistral-window": ("float32", Lora(rank=1, targets=["v_proj", "down_proj"])),
}


@torch.no_grad()
def change_adapters(policy: Policy, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in policy.weights.values():
        weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))


def skipping(engine: VllmEngine, policy: Policy, old: Tensor) -> None:
    """Load nothing."""


def leaving_out(engine: VllmEngine, policy: Policy, old: Tensor) -> None:
    sent = {**adapter_factors(policy.module), STALE: old}
    with mock.patch.object(vllm, "adapter_factors", return_value=sent):
        engine.load(policy.module)


def swapping_layers(engine: VllmEngine, policy: Policy, old: Tensor) -> None:
    first, second = "layers.0.", "layers.1."
    sent = {}
    for name, factor in adapter_factors(policy.module).items():
        other = name.replace(first, second) if first in name else name.replace(second, first)
        sent[other] = factor
    with mock.patch.object(vllm, "adapter_factors", return_value=sent):
        engine.load(policy.module)


@pytest.mark.parametrize("name", CASES)
def test_factors_arrive_bit_for_bit_and_each_fault_is_caught_at_once(name: str, tmp_path: Path) -> None:
    """All with one engine, since starting one takes seconds."""
    kind, lora = CASES[name]
    dtype = DTYPES[kind]
    build(name).save_pretrained(tmp_path)
    policy = Policy(tmp_path, Train(lora=lora), TEMPERATURE, "cpu", dtype, Hardware(device="cpu"))
    engine = VllmEngine(tmp_path, [EOS], "cpu", dtype, cache_gib=0.1, lora=lora)
    both_layers = 2 * 2 * len(lora.targets)
    cases = {
        skipping: rf"{both_layers} of .*the load was skipped or partial",
        leaving_out: rf"1 of .*\({STALE}\).*the load was skipped or partial",
        swapping_layers: rf"{both_layers} of .*layers were loaded in the wrong order",
    }
    engine.load(policy.module)
    check_engine_weights(engine, policy.module, dtype, 0)
    for update, (fault, sentence) in enumerate(cases.items()):
        old = adapter_factors(policy.module)[STALE]
        change_adapters(policy, update)
        fault(engine, policy, old)
        for seed in range(3):
            with pytest.raises(CellFailure, match=sentence):
                check_engine_weights(engine, policy.module, dtype, seed)
        engine.load(policy.module)
        for seed in range(3):
            check_engine_weights(engine, policy.module, dtype, seed)
        assert difference(engine, policy).max() < (1e-3 if dtype == torch.float32 else 0.5)
    wanted = engine.expected(policy.module)
    held = engine.weights(dict.fromkeys(wanted, slice(None)))
    for key, weight in wanted.items():
        assert torch.equal(held[key].to(dtype), weight.to(dtype)), key


def difference(engine: VllmEngine, policy: Policy) -> Tensor:
    """Return the differences of log p between the engine and the trainer on samples of the engine."""
    groups = generate(engine, temperature=TEMPERATURE)
    batch = TokenBatch.of(groups, [0.0] * sum(map(len, groups)), 12, "cpu")
    found = (policy.stats(batch).logp - batch.behaviour_logp_T).abs()
    print(f"largest difference in log p {found.max():.1e}, mean {found.mean():.1e}")
    return found


def test_ranks_are_those_of_vllm() -> None:
    from vllm.config.lora import MaxLoRARanks

    assert get_args(MaxLoRARanks) == VLLM_RANKS
