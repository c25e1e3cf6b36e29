"""What a cell asks of its GPU, by torch's functions for it; none of these tests needs one."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import refusal
from mortal import Killed
from trainers import build

from harness import config
from harness.base import devices
from harness.base.errors import UserError
from harness.launch import status_writer
from harness.tokens.metrics import Stopwatch
from harness.train import gpu_memory, parts
from harness.train.collect import Collector
from harness.train.parts import training_device

GIB = 2**30


def pool(number: tuple[int, int], gib: float) -> dict[str, Any]:
    return {"segment_pool_id": number, "allocated_size": int(gib * GIB)}


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits that this process sets itself on a GPU of 80 GiB, where an engine holds 10 in two pools."""
    fractions: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: [pool((0, 0), 5), pool((0, 1), 7), pool((0, 2), 3)])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 22 * GIB)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    return fractions


def test_an_engine_that_sleeps_takes_nothing_of_a_share(limits: list[float]) -> None:
    for share in (0.25, 0.95, 1.0):
        gpu_memory.limit(share)
    assert limits == [0.25 + 10 / 80, 1.0, 1.0]


@pytest.mark.parametrize("lag", [0, 1])
def test_share_counts_an_engine_that_sleeps(lag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a lag it samples during updates."""
    calls: list[str] = []

    def stop(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(parts, "training_device", lambda settings: ("cuda", torch.float32))
    monkeypatch.setattr(parts, "Policy", lambda *given: SimpleNamespace(dropout={}, module=None))
    monkeypatch.setattr(parts, "check_vocabulary", lambda *given: None)
    monkeypatch.setattr(gpu_memory, "limit", lambda share: calls.append(f"limit {share}"))
    monkeypatch.setattr(parts.engines, "build_engine", lambda *given: calls.append("engine"))
    monkeypatch.setattr(parts, "with_instruction", stop)  # what follows needs a GPU
    with pytest.raises(Killed):
        build(tmp_path, "grpo", "hardware.share=0.25", f"rollout.lag={lag}")
    assert calls == ["limit 0.25", "engine"] + ["limit 0.25"] * (not lag)


def test_sampling_beside_training_has_a_stream_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build(tmp_path, "grpo", "rollout.lag=1")
    trainer.policy.device = "cuda"
    calls: list[tuple[str, bool]] = []

    def heard(name: str) -> None:
        calls.append((name, threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: heard("synchronize"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: heard(f"device {device}"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: "another")
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: heard(f"{stream} stream"))
    collector = Collector(trainer.parts, tmp_path)
    collector.begin(2, Stopwatch())
    collector.finish(Stopwatch())
    assert calls[:3] == [("synchronize", True), ("device 1", False), ("another stream", False)]
    assert calls[3] == ("synchronize", True)


def test_peak_of_memory_is_that_beside_the_engine(limits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    assert status_writer.memory_peak() == "at most 12.0 GiB of the GPU were in use beside the 10.0 GiB of the engine"
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: [pool((0, 0), 5)])
    assert status_writer.memory_peak() == "at most 22.0 GiB of the GPU were in use"


def test_bfloat16_on_a_gpu_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    settings = config.load_config("standard", ["hardware.device=cuda", "train.dtype=bfloat16"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert training_device(settings) == ("cuda", torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(UserError, match=r"^Tesla T4 does not compute in bfloat16.* 8\.0; set train\.dtype=float32$"):
        training_device(settings)
    settings.train.dtype = "float32"
    assert training_device(settings) == ("cuda", torch.float32)


def test_bfloat16_is_refused_before_a_cell_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each value of an axis."""
    monkeypatch.setattr(devices, "cuda_devices", lambda: (devices.Device("Tesla T4", 16 * GIB, (7, 5)),))
    settings = ("demo", "models=[countdown-tiny]", "hardware.device=cuda", f"results={tmp_path / 'results'}")
    sentence = "entrobench: Tesla T4 does not compute in bfloat16, which takes compute capability 8.0; set "
    for axis in ([], ["axes.train.dtype=[float32,bfloat16]"], ["axes.train.dtype=[bfloat16,float32]"]):
        assert refusal("run", *settings, *axis).startswith(sentence)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("device", "offload", "threads"), [("cuda", True, 6), ("cuda", False, 1), ("cpu", True, 1)])
def test_adamw_on_the_cpu_beside_a_gpu_uses_its_cores(
    device: str, offload: bool, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: 12)
    trainer = build(tmp_path, "grpo", f"hardware.offload={offload}", "hardware.share=0.5")
    seen: list[int] = []
    trainer.policy.device = device
    trainer.policy.optimizer.register_step_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    for weight in trainer.policy.weights.values():
        weight.grad = torch.ones_like(weight)
    trainer.policy.apply(1e-3)
    assert (seen, torch.get_num_threads()) == ([threads], 1)
