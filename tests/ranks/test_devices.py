"""The meaning of `hardware.device` on different machines."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

from harness.ranks import devices
from harness.ranks.devices import Device


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    devices.usable.cache_clear()
    yield
    devices.usable.cache_clear()


@pytest.mark.parametrize(
    ("wanted", "found", "built", "visible", "kind"),
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
def test_where_a_cell_computes(
    wanted: str, found: int, built: bool, visible: str | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cuda_devices", lambda: (Device("any", None),) * found)
    monkeypatch.setattr(devices, "built_for_cuda", lambda: built)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.resolve_device(wanted) == kind


def test_what_torch_was_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_gpus_that_may_be_used(visible: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cuda_devices", lambda: (Device("any", None),) * 2)
    monkeypatch.setenv("PATH", "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.gpus() == names


def test_a_gpu_that_is_cut_into_parts_is_its_parts() -> None:
    told = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-b1028956-cfa2-0990-bf4a-5da9abb51763)
  MIG 3g.40gb     Device  0: (UUID: MIG-8f1e2a3c-0000-5555-8888-1234567890ab)
  MIG 3g.40gb     Device  1: (UUID: MIG-8f1e2a3c-0000-5555-8888-1234567890ac)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1f7a1a05-bf75-e5b2-7b8f-0e2f1c1e9d6f)
"""
    assert devices.parse_gpu_list(told) == [
        "MIG-8f1e2a3c-0000-5555-8888-1234567890ab",
        "MIG-8f1e2a3c-0000-5555-8888-1234567890ac",
        "GPU-1f7a1a05-bf75-e5b2-7b8f-0e2f1c1e9d6f",
    ]
