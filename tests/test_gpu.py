"""The same code on CUDA; run by `pytest -m gpu` on a machine that has one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_ranks import divided, lines, write
from test_trainer import build, same, weights

from harness import cell
from harness.metrics import Stopwatch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none here"),
]

METHODS = ["grpo", "clip_v(share=0.02)", "ppo", "ce_gppo", "adaptive_entropy(target=9,delta=0.01,highest=1)"]


@pytest.mark.parametrize("method", METHODS)
def test_a_step_in_float32_is_that_of_the_cpu(method: str, tmp_path: Path) -> None:
    cpu = build(tmp_path / "cpu", method, "hardware.device=cpu", "train.dtype=float32")
    cuda = build(tmp_path / "cuda", method, "hardware.device=cuda", "train.dtype=float32")
    one, other = cpu.train_step(1, Stopwatch()), cuda.train_step(1, Stopwatch())
    # The uniform numbers of the sampler are drawn on the CPU on both, so nearly every response is the same.
    assert other["reward/mean"] == pytest.approx(one["reward/mean"], abs=0.05)
    assert other["entropy/mean"] == pytest.approx(one["entropy/mean"], rel=0.02)
    assert other["mismatch/max"] < 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_training_in_bfloat16_learns_with_float32_master_weights(method: str, tmp_path: Path) -> None:
    trainer = build(tmp_path, method, "hardware.device=cuda", "train.prompts=48", "train.updates=3", "train.group=16")
    assert {p.dtype for p in weights(trainer)} == {torch.float32}
    assert {p.device.type for p in weights(trainer)} == {"cuda"}
    before = weights(trainer)
    records = [trainer.train_step(step, Stopwatch()) for step in range(1, 21)]
    assert not same(before, weights(trainer))
    first, last = records[0]["reward/mean"], sum(record["reward/mean"] for record in records[-3:]) / 3
    assert last > first
    assert max(record["mismatch/mean"] for record in records) < 0.05


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_ranks_on_two_devices_are_one_process(tmp_path: Path) -> None:
    """Up to draws that tip where logits differ in their last bits: in the first step hardly any does."""
    settings = ["hardware.device=cuda", "train.dtype=float32"]
    write(tmp_path / "alone", *settings)
    cell.run(tmp_path / "alone")
    write(tmp_path / "ranks", *settings, "hardware.ranks=2", "hardware.recompute=true")
    assert divided(tmp_path / "ranks", 2) == 0
    alone, ranks = lines(tmp_path / "alone"), lines(tmp_path / "ranks")
    for name in ("reward/mean", "entropy/mean", "gradient/norm", "gradient/critic_norm"):
        assert ranks[1][name] == pytest.approx(alone[1][name], rel=0.02), name
    assert max(record["mismatch/max"] for record in list(ranks.values())[1:]) < 1e-3
