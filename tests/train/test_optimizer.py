"""AdamW with moments of 8 bits: updates next to exact ones, resumed runs, and memory."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from known import known
from tiny import MODELS, randomize
from torch import Tensor
from trainers import check_resumed, trained

from harness.config import Hardware, Train
from harness.methods.batch import Rollout, TokenBatch
from harness.plan import cost
from harness.rollout import models
from harness.train.optimizer import plain_tensors
from harness.train.policy import Policy

EIGHT_BITS = "train.optimizer=adamw8bit"
torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="torchao, of the extra adamw8bit, is not installed")


def has_eight_bits(weight: Tensor) -> bool:
    return weight.numel() >= 4096 and weight.numel() % 256 == 0


def a_batch(generator: torch.Generator) -> TokenBatch:
    def tokens(number: int) -> list[int]:
        return torch.randint(5, 80, (number,), generator=generator).tolist()

    groups = []
    for prompt in (tokens(4), tokens(4)):
        groups.append([Rollout(prompt, tokens(6), [-1.0] * 6, True) for _ in range(2)])
    return TokenBatch.of(groups, [0.0] * 4, 4, "cpu")


@torchao
@pytest.mark.parametrize(("lr", "weight_decay"), [(1e-3, 0.0), (1e-2, 0.1)])
def test_updates_are_those_of_exact_adamw(lr: float, weight_decay: float, tmp_path: Path) -> None:
    """Of the same gradients in float64: the first one up to rounding; the sum of 20, 3 % of its length at most.

    Weights of under 4,096 numbers have moments in float32, and stay within rounding.
    """
    model = MODELS["qwen2-tied"]()
    randomize(model, 0)
    model.save_pretrained(tmp_path)
    train = Train(optimizer="adamw8bit", weight_decay=weight_decay)
    policy = Policy(tmp_path, train, 1.0, "cpu", torch.float32, Hardware(device="cpu"))
    exact = {name: weight.detach().double().requires_grad_() for name, weight in policy.weights.items()}
    first = {name: weight.detach().clone() for name, weight in exact.items()}
    reference = torch.optim.AdamW(exact.values(), lr=lr, weight_decay=weight_decay)
    eight_bit = [name for name, weight in exact.items() if has_eight_bits(weight)]
    assert 0 < len(eight_bit) < len(exact)

    def largest_error(names: list[str]) -> float:
        """Return the largest difference, as a multiple of the learning rate."""
        return max((policy.weights[name] - exact[name]).abs().max().item() for name in names) / lr

    generator = torch.Generator().manual_seed(0)
    for step in range(1, 21):
        for part in policy.micro_batches(a_batch(generator)):
            policy.backward(policy.current(part, frozenset()).logp.sum())
        torch.nn.utils.clip_grad_norm_(policy.module.parameters(), train.grad_clip)
        for name, weight in policy.weights.items():
            exact[name].grad = known(weight.grad).double()
        policy.apply(lr)
        reference.step()
        if step == 1:
            assert largest_error([*exact]) < 1e-3
    assert largest_error([name for name in exact if name not in eight_bit]) < 1e-3
    errors = torch.cat([(policy.weights[name] - exact[name]).flatten() for name in eight_bit])
    moved = torch.cat([(exact[name] - first[name]).flatten() for name in eight_bit])
    assert 0.001 * moved.norm() < errors.norm() < 0.03 * moved.norm()


@torchao
@pytest.mark.slow
def test_resumed_run_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    settings = (EIGHT_BITS, "train.steps=3", "train.lr=1e-2", "checkpoint.every=1", "checkpoint.keep_last=true")
    whole = check_resumed(tmp_path, "grpo", *settings, killed_at=1)
    newest = whole.checkpoints.latest()
    for name, weight in whole.policy.weights.items():
        parts_of_moment = {".codes", ".scale"} if has_eight_bits(weight) else {""}
        assert {f"exp_avg{part}.{name}" for part in parts_of_moment} <= known(newest).of("policy")


@torchao
@pytest.mark.slow
def test_memory_is_what_is_planned(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "grpo", EIGHT_BITS, "train.steps=1", "checkpoint.keep_last=true")
    held = 0
    for state in trainer.policy.optimizer.state.values():
        held += sum(x.nbytes for name, x in plain_tensors(state).items() if name != "step")
    shape, settings = models.resolve("countdown-tiny").shape(), trainer.config
    assert shape is not None
    estimate = cost.memory_estimate(shape, settings, frozenset(), 4, cost.EMBEDDED)
    in_float32 = sum(8 * weight.numel() for weight in trainer.policy.weights.values() if not has_eight_bits(weight))
    assert estimate.training["AdamW"] <= held <= estimate.training["AdamW"] + in_float32
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    size = sum(file.stat().st_size for file in checkpoint.iterdir())
    assert cost.disk_bytes(shape, settings, frozenset())[0] == pytest.approx(size, rel=0.1)
