"""The same code on CUDA; `pytest -m gpu` runs it on a machine that has a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from launched import divided, lines, write_launched
from torch.distributed.tensor import DTensor
from trainers import build, same, sample_in_turn, sampled, weights

from harness import config, matrix, ranks
from harness.launch import cell
from harness.methods.batch import TokenBatch
from harness.rollout import choice
from harness.tokens.head import Head
from harness.tokens.metrics import Stopwatch
from harness.tokens.statistics import token_stats

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

METHODS = ["grpo", "clip_v(share=0.02)", "ppo", "ce_gppo", "adaptive_entropy(target=0.3,delta=0.002,highest=0.1)"]


@pytest.mark.parametrize("method", METHODS)
def test_train_step_in_float32_equals_the_cpu(method: str, tmp_path: Path) -> None:
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


@pytest.mark.processes  # of torch's compiler
@pytest.mark.parametrize(("dtype", "compiled"), [("float32", False), ("bfloat16", False), ("bfloat16", True)])
def test_packed_sequences_are_those_with_padding(
    dtype: str, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel computes them in bfloat16, whose result is rounded to 8 bits; several calls in float32."""
    results: list[tuple[torch.Tensor, float]] = []
    for long in (10**6, 0):
        monkeypatch.setattr("harness.methods.batch.LONG", long)
        settings = [f"train.dtype={dtype}", f"hardware.compile={compiled and long == 0}"]
        trainer = build(tmp_path / str(long), "grpo", "hardware.device=cuda", *settings)
        if not results:
            groups = sampled(trainer, 1)
        batch = TokenBatch.of(groups, [0.0, 1.0] * 32, 20, "cuda")
        logp_T = trainer.policy.stats(batch).logp
        for part in trainer.policy.micro_batches(batch):
            assert part.packed == (long == 0)
            trainer.policy.backward(trainer.policy.current(part, frozenset()).logp.sum())
        results.append((logp_T, trainer.policy.step(1)))
    (padded_T, norm), (packed_T, other) = results
    bound = 1e-4 if dtype == "float32" else 0.1
    assert (packed_T - padded_T).abs().max() < bound
    assert other == pytest.approx(norm, rel=bound)


def test_offloaded_moments_are_not_on_the_device(tmp_path: Path) -> None:
    used = []
    for offload in (False, True):
        trainer = build(tmp_path / str(offload), "grpo", "hardware.device=cuda", f"hardware.offload={offload}")
        before = weights(trainer)
        trainer.train_step(1, Stopwatch())
        assert not same(before, weights(trainer))
        moments = [x for state in trainer.policy.optimizer.state.values() for x in state.values()]
        assert {x.device.type for x in moments} == {"cpu" if offload else "cuda"}
        assert {x.device.type for x in weights(trainer)} == {"cuda"}
        used.append(torch.cuda.memory_allocated())
        del trainer, moments, before
    assert used[1] < used[0]


def test_adapters_reach_the_engine(tmp_path: Path) -> None:
    """The ratio is 1 after each update, in bfloat16 with large ones; a resumed run has the adapters and moments."""
    settings = ["hardware.device=cuda", "train.lora.rank=4", "train.lr=1e-2", "checkpoint.every=1"]
    trainer = build(tmp_path, "grpo", *settings)
    before = weights(trainer)
    records = [trainer.train_step(step, Stopwatch()) for step in range(1, 4)]
    assert not same(before, weights(trainer))
    assert max(record["mismatch/p99"] for record in records) < 0.15
    trainer.done_steps = 3
    trainer.save()
    trainer.checkpoints.written(wait=True)
    resumed = build(tmp_path, "grpo", *settings)
    resumed.resume()
    assert same(weights(resumed), weights(trainer))


def test_sampling_beside_training(tmp_path: Path) -> None:
    """On a stream of its own, with the weights that the engine has, as in turn."""
    runs = []
    for name in ("in-turn", "meanwhile"):
        trainer = build(tmp_path / name, "grpo", "hardware.device=cuda", "train.dtype=float32", "rollout.lag=1")
        if name == "in-turn":
            sample_in_turn(trainer)
        runs.append([trainer.train_step(step, Stopwatch()) for step in (1, 2, 3)])
    for in_turn, meanwhile in zip(*runs, strict=True):
        assert meanwhile["reward/mean"] == pytest.approx(in_turn["reward/mean"], abs=0.05)
        assert meanwhile["entropy/mean"] == pytest.approx(in_turn["entropy/mean"], rel=0.02)
        assert meanwhile["mismatch/max"] == pytest.approx(in_turn["mismatch/max"], rel=0.1, abs=1e-3)


@pytest.mark.processes
def test_moments_of_8_bits(tmp_path: Path) -> None:
    """The first update is compiled, which needs a C compiler."""
    pytest.importorskip("torchao")
    changes = []
    for name in ("adamw", "adamw8bit"):
        settings = ["hardware.device=cuda", "train.dtype=float32", f"train.optimizer={name}"]
        trainer = build(tmp_path / name, "grpo", *settings)
        before = torch.cat([x.flatten() for x in weights(trainer)])
        for step in (1, 2):
            trainer.train_step(step, Stopwatch())
        changes.append(torch.cat([x.flatten() for x in weights(trainer)]) - before)
    exact, other = changes
    assert (other - exact).norm() < 0.2 * exact.norm()


def test_train_step_of_one_sharded_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP2 and NCCL with one rank: the step, and a checkpoint of shards that whole weights are read from."""
    settings = ["hardware.device=cuda", "train.dtype=float32"]
    whole = build(tmp_path / "whole", "ppo", *settings)
    one = whole.train_step(1, Stopwatch())
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ranks, "several", lambda: True)
            sharded = build(tmp_path / "sharded", "ppo", *settings)
            assert {type(p) for p in sharded.policy.module.parameters()} == {DTensor}
            other = sharded.train_step(1, Stopwatch())
            sharded.done_steps = 1
            sharded.save()
            sharded.checkpoints.written(wait=True)
            trained = [ranks.whole_weight(p) for p in weights(sharded)]
    finally:
        torch.distributed.destroy_process_group()
    for name in ("reward/mean", "entropy/mean", "gradient/norm", "gradient/critic_norm"):
        assert other[name] == pytest.approx(one[name], rel=1e-4), name
    resumed = build(tmp_path / "sharded", "ppo", *settings)
    resumed.resume()
    assert same(weights(resumed), trained)


@pytest.mark.parametrize("backend", ["dense", "torch"])
def test_logits_are_not_rounded_to_bfloat16(backend: str) -> None:
    """Those of bfloat16 inputs, in float64. Logits of about 20 would be off by up to 0.06, and so would log p."""
    generator = torch.Generator().manual_seed(0)
    hidden_TD = torch.randn(50, 64, generator=generator).to(torch.bfloat16)
    weight_VD = (2.5 * torch.randn(5000, 64, generator=generator)).to(torch.bfloat16)
    targets_T = torch.randint(5000, (50,), generator=generator)
    logp_TV = torch.log_softmax(hidden_TD.double() @ weight_VD.double().T, dim=-1)
    slopes_TV = torch.nn.functional.one_hot(targets_T, 5000) - logp_TV.exp()
    hidden_TD, weight_VD = (x.cuda().requires_grad_() for x in (hidden_TD, weight_VD))
    stats = token_stats(hidden_TD, Head(weight_VD), targets_T.cuda(), 1.0, backend=backend)
    torch.testing.assert_close(stats.logp.double().cpu(), logp_TV[range(50), targets_T], rtol=1e-5, atol=1e-3)
    assert stats.entropy is not None
    torch.testing.assert_close(stats.entropy.double().cpu(), -(logp_TV.exp() * logp_TV).sum(-1), rtol=1e-4, atol=1e-3)
    stats.logp.sum().backward()
    expected_TD = slopes_TV @ weight_VD.detach().double().cpu()
    assert hidden_TD.grad is not None
    torch.testing.assert_close(hidden_TD.grad.double().cpu(), expected_TD, rtol=2e-2, atol=5e-2)


@pytest.mark.processes
@pytest.mark.skipif(choice.installed_vllm() is None, reason="needs the package vllm")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_run_on_vllm(dtype: str, tmp_path: Path) -> None:
    """Cells prove their weights after each load, and stop where log-probabilities differ."""
    settings = ["rollout.engine=vllm", "hardware.device=cuda", "hardware.cache_gib=1", f"train.dtype={dtype}"]
    command = [sys.executable, "-m", "entrobench", "run", "smoke", *settings, f"results={tmp_path}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    logs = list(tmp_path.glob("smoke/*/metrics.jsonl"))
    assert len(logs) == len(matrix.cells(config.load_config("smoke", settings)))
    for log in logs:
        *_, last = lines(log.parent).values()
        assert last["mismatch/mean"] < 0.05


@pytest.mark.processes
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_work_on_two_devices(tmp_path: Path) -> None:
    """Up to draws that tip where logits differ in their last bits: in the first step hardly any does."""
    settings = ["hardware.device=cuda", "train.dtype=float32"]
    write_launched(tmp_path / "alone", *settings)
    cell.work(tmp_path / "alone")
    write_launched(tmp_path / "ranks", *settings, "hardware.ranks=2", "hardware.recompute=true")
    assert divided(tmp_path / "ranks", 2) == 0
    alone, ranks = lines(tmp_path / "alone"), lines(tmp_path / "ranks")
    for name in ("reward/mean", "entropy/mean", "gradient/norm", "gradient/critic_norm"):
        assert ranks[1][name] == pytest.approx(alone[1][name], rel=0.02), name
    assert max(record["mismatch/max"] for record in list(ranks.values())[1:]) < 1e-3
