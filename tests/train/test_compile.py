"""Compiled norms and MLPs: the same gradients up to rounding, by code that serves all lengths and layers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tiny import MODELS, randomize
from torch import Tensor
from torch._dynamo.utils import counters

from harness.config import Hardware, Lora, Train
from harness.methods.batch import Rollout, TokenBatch
from harness.train.policy import Policy


def batch(lengths: list[int]) -> TokenBatch:
    rollouts = [Rollout([3] * 70, list(range(4, 4 + length)), [-1.0] * length, True) for length in lengths]
    return TokenBatch.of([rollouts], [0.0] * len(lengths), max(lengths), "cpu")


def gradients(policy: Policy, batch: TokenBatch) -> list[Tensor]:
    policy.network.zero_grad()
    policy.backward(policy.current(batch, frozenset()).logp.sum())
    return [weight.grad.clone() for weight in policy.weights.values() if weight.grad is not None]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.long
@pytest.mark.processes  # of the C++ compiler
@pytest.mark.parametrize("lora", [None, Lora(rank=3)], ids=["weights", "adapters"])
def test_gradients_of_compiled_parts(lora: Lora | None, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = MODELS["qwen3-tied"]()
    randomize(model, 0)
    model.save_pretrained(tmp_path)
    plain, compiled = (
        Policy(tmp_path, Train(lora=lora), 1.0, "cpu", torch.float32, Hardware(recompute=0.5, compile=compile))
        for compile in (False, True)
    )
    torch._dynamo.reset()
    counters.clear()
    graphs = []
    for lengths in ([9, 5, 7], [30, 2], [1, 1, 8, 3]):
        ours, theirs = gradients(compiled, batch(lengths)), gradients(plain, batch(lengths))
        assert max(grad.abs().max().item() for grad in theirs) > 1e-2
        for actual, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        stats = [policy.stats(batch(lengths)).logp for policy in (compiled, plain)]
        torch.testing.assert_close(*stats, rtol=1e-5, atol=1e-5)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert graphs == graphs[:1] * 3, "other lengths take the same code"
