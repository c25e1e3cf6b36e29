"""The meaning of `hardware.device` on different machines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

from harness.base import devices
from harness.base.devices import Device


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    devices.usable.cache_clear()
    yield
    devices.usable.cache_clear()


def show_devices(visible: str | None, patch: pytest.MonkeyPatch) -> None:
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        patch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize(
    ("wanted", "gpus", "built", "visible", "kind"),
    [
        ("auto", 0, True, None, "cpu"),
        ("auto", 1, True, None, "cuda"),
        ("auto", 1, True, "0", "cuda"),
        ("auto", 1, True, "", "cpu"),
        ("auto", 1, True, "-1", "cpu"),
        ("auto", 1, False, None, "cpu"),
        ("cpu", 1, True, None, "cpu"),
        ("cuda", 0, False, None, "cuda"),
    ],
)
def test_resolve_device_on_machines(
    wanted: str, gpus: int, built: bool, visible: str | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cuda_devices", lambda: (Device("any", None),) * gpus)
    monkeypatch.setattr(devices, "built_for_cuda", lambda: built)
    show_devices(visible, monkeypatch)
    assert devices.resolve_device(wanted) == kind


def test_built_for_cuda_of_torch_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.built_for_cuda() == (torch.version.cuda is not None)
    for line, built in (
        ("cuda: Optional[str] = '12.8'", True),
        ("cuda = '13.0'", True),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.2'", False),
    ):
        (tmp_path / "version.py").write_text(f"from typing import Optional\n__version__ = '2.13.0'\n{line}\n")
        spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
        monkeypatch.setattr(devices, "find_spec", lambda name, spec=spec: spec)
        assert devices.built_for_cuda() is built


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("0,2", ["0", "2"]),
        ("GPU-5a0c, MIG-77", ["GPU-5a0c", "MIG-77"]),
        ("", []),
        ("-1", []),
        (None, ["0", "1"]),  # where nvidia-smi is not there, as many as the driver has
    ],
)
def test_gpus_with_visible_devices(visible: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cuda_devices", lambda: (Device("any", None),) * 2)
    monkeypatch.setenv("PATH", "")
    show_devices(visible, monkeypatch)
    assert devices.gpus() == names


def test_parse_gpu_list_with_parts_of_a_gpu() -> None:
    output = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-b1028956-cfa2-0990-bf4a-5da9abb51763)
  MIG 3g.40gb     Device  0: (UUID: MIG-8f1e2a3c-0000-5555-8888-1234567890ab)
  MIG 3g.40gb     Device  1: (UUID: MIG-8f1e2a3c-0000-5555-8888-1234567890ac)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1f7a1a05-bf75-e5b2-7b8f-0e2f1c1e9d6f)
"""
    assert devices.parse_gpu_list(output) == [
        "MIG-8f1e2a3c-0000-5555-8888-1234567890ab",
        "MIG-8f1e2a3c-0000-5555-8888-1234567890ac",
        "GPU-1f7a1a05-bf75-e5b2-7b8f-0e2f1c1e9d6f",
    ]


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/pod/box\n", {"pod/cpu.max": "300000 100000\n", "pod/box/cpu.max": "max 100000\n"}, 3),
        ("3:cpuset:/\n1:cpu,cpuacct:/pod\n", {"cpu/pod/cpu.cfs_quota_us": "-1\n"}, 8),
        ("3:cpuset:/\n1:cpu,cpuacct:/pod\n", {"cpu/pod/cpu.cfs_quota_us": "400000\n"}, 4),
        ("1:cpu:/docker/1f\n0::/\n", {"cpu/cpu.cfs_quota_us": "200000\n"}, 2),
    ],
)
def test_usable_cores_with_a_quota(
    membership: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        path = tmp_path / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.with_name("cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "own").write_text(membership)
    monkeypatch.setattr(devices, "CGROUPS", tmp_path / "mount")
    monkeypatch.setattr(devices, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert devices.usable_cores() == cores
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert devices.usable_cores() == 1
