"""The first pass of the first update also gives statistics before it, and changes no number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from registered import method

from harness.conformance import miniature
from harness.conformance.miniature import Size
from harness.methods.batch import TokenBatch
from harness.tokens.metrics import Stopwatch
from harness.train import trainer as loop

# Plain; batch statistics; a critic, by which responses of equal rewards have a gradient; an entropy with gradient; a
# column that is computed before the update alone, one that is in each pass; marks of each mini-batch; a model before
# training.
SPECS = ["grpo", "clip_b(share=0.1)", "ppo", "entropy_bonus", "lp_reg", "tre", "steer", "grpo(kl_coef=0.1)"]


def trained(spec: str, folder: Path, size: Size, micro: int) -> tuple[dict[str, float], torch.Tensor, int]:
    """Return the record of a step, the weights after it, and the tokens that passed through the policy."""
    trainer = miniature.miniature_trainer(method(spec), folder / "model", folder, size, steps=1)
    trainer.policy.micro = micro
    forward, tokens = trainer.policy._forward, []

    def counted(batch: TokenBatch, **which: bool) -> object:
        tokens.append(len(batch.index_T))
        return forward(batch, **which)

    trainer.policy._forward = counted  # type: ignore[assignment, method-assign]
    record = trainer.train_step(1, Stopwatch())
    weights = [weight.detach().flatten() for weight in trainer.policy.weights.values()]
    return record, torch.cat(weights), sum(tokens)


@pytest.mark.parametrize(("updates", "micro"), [(1, 10**6), (2, 10**6), (2, 60)])
@pytest.mark.parametrize("spec", SPECS)
def test_first_pass(spec: str, updates: int, micro: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = Size(dtype=torch.float64, updates=updates)
    miniature.write_model(tmp_path / "model", size)
    record, weights, tokens = trained(spec, tmp_path, size, micro)
    monkeypatch.setattr(loop, "first_pass", lambda *_: None)
    expected, expected_weights, all_tokens = trained(spec, tmp_path, size, micro)
    assert torch.allclose(weights, expected_weights, rtol=0, atol=1e-11)
    assert record == pytest.approx(expected, rel=1e-11, abs=1e-11)
    assert tokens < all_tokens, "each token of the pass is computed once less"


def test_first_pass_without_differing_rewards(tmp_path: Path) -> None:
    """No response would have a gradient, so no graph is kept."""
    size = Size(dtype=torch.float64)
    miniature.write_model(tmp_path / "model", size)
    trainer = miniature.miniature_trainer(method("grpo"), tmp_path / "model", tmp_path, size, steps=1)
    batch = trainer.batch_of(trainer.collector.collect(1, Stopwatch()), 1)
    assert loop.first_pass(trainer.policy, trainer.method, batch, frozenset()) is not None
    batch.rewards_B.fill_(1.0)
    assert loop.first_pass(trainer.policy, trainer.method, batch, frozenset()) is None
