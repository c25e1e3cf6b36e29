"""Layers that are recomputed: gradients are the same bit for bit, for any share of the layers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from tiny import SIZES
from transformers import Qwen3Config, Qwen3ForCausalLM

from harness.config import Hardware, Train, load_config
from harness.methods import batch as batches
from harness.methods.batch import Rollout, TokenBatch
from harness.train.policy import Critic, Policy, layers_of

LAYERS = 4


def gradients(kind: type[Policy | Critic], folder: Path, share: float) -> tuple[list[torch.Tensor], list[int]]:
    """Return the gradients of a batch, and how many times each layer was computed."""
    learner = kind(folder, Train(), 1e-3, "cpu", torch.float32, Hardware(recompute=share))
    rollouts = [Rollout([3], list(range(4, 4 + length)), [-1.0] * length, True) for length in (9, 5, 7)]
    batch = TokenBatch.of([rollouts], [0.0] * 3, 9, "cpu")
    computed: Counter[int] = Counter()
    model = learner.module if isinstance(learner, Policy) else learner.module.body
    for number, layer in enumerate(layers_of(model)):
        layer.self_attn.register_forward_pre_hook(lambda *_, number=number: computed.update([number]))  # type: ignore
    if isinstance(learner, Policy):
        learner.backward(learner.current(batch, frozenset()).logp.sum())
    else:
        torch.nn.init.ones_(learner.module.head.weight)
        learner.backward(learner.current(batch).square().sum())
    found = [weight.grad for weight in learner.weights.values() if weight.grad is not None]
    return found, [computed[number] for number in range(LAYERS)]


@pytest.mark.parametrize("long", [0, 10**6], ids=["packed", "padded"])
@pytest.mark.parametrize("kind", [Policy, Critic])
def test_gradients_with_a_share_of_the_layers(
    kind: type[Policy | Critic], long: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "LONG", long)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "num_hidden_layers": LAYERS})).save_pretrained(tmp_path)
    expected, once = gradients(kind, tmp_path, 0.0)
    assert once == [1, 1, 1, 1]
    assert max(grad.abs().max().item() for grad in expected) > 1e-3
    for share, times in ((0.1, [2, 1, 1, 1]), (0.5, [2, 2, 1, 1]), (True, [2, 2, 2, 2])):
        actual, computed = gradients(kind, tmp_path, share)
        assert computed == times
        assert all(map(torch.equal, actual, expected))


def test_recompute_takes_a_share_or_a_switch() -> None:
    for given, share in (("true", 1.0), ("false", 0.0), ("0.5", 0.5), ("1", 1.0)):
        assert load_config("demo", [f"hardware.recompute={given}"]).hardware.recompute == share
