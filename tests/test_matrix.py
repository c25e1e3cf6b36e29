"""Who a cell is: device and compute type belong to it, and are settled before it has a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import config
from harness.base import devices
from harness.matrix import Cell, cells


def cell(*overrides: str) -> Cell:
    return cells(config.load("smoke", overrides))[0]


def test_who_a_cell_is_depends_on_what_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "kind", lambda wanted: "cpu" if wanted == "auto" else wanted)
    cpu, float32, bfloat16 = cell(), cell("train.dtype=float32"), cell("train.dtype=bfloat16")
    cuda, exact = cell("hardware.device=cuda"), cell("hardware.device=cuda", "train.dtype=float32")
    assert cpu.key == float32.key == cell("hardware.device=cpu").key
    assert cpu.identity["train"]["dtype"] == "auto", "whose key is that of all cells before there was a GPU"
    assert "device" not in cpu.identity
    assert cuda.key == cell("hardware.device=cuda", "train.dtype=bfloat16").key
    assert len({each.key for each in (cpu, bfloat16, cuda, exact)}) == 4
    for each, device, dtype in ((cpu, "cpu", "float32"), (cuda, "cuda", "bfloat16"), (exact, "cuda", "float32")):
        assert each.settled.hardware.device == each.spec.settings["hardware"]["device"] == device
        assert each.settled.train.dtype == each.spec.settings["train"]["dtype"] == dtype
    # The same configuration on a machine with a GPU.
    monkeypatch.setattr(devices, "kind", lambda wanted: "cuda" if wanted == "auto" else wanted)
    assert (cell().key, cell("hardware.device=cpu").key) == (cuda.key, cpu.key)
    assert cell().folder != cpu.folder


def test_a_password_in_an_address_is_written_nowhere(tmp_path: Path) -> None:
    one = cell("tracking.uri=http://me:secret@host", f"results={tmp_path}")
    one.spec.write(one.folder)
    assert one.config.tracking_uri == "http://me:secret@host"
    assert one.spec.settings["tracking"] == {"uri": "http://me:***@host"}
    assert "secret" not in (one.folder / "config.yaml").read_text()
