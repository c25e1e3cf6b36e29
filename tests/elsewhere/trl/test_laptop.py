"""The benchmark of one training step against TRL's, on the tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

from benchmarks import laptop

pytest.importorskip("trl", reason="trl is not installed; the extra trl has it")
pytestmark = [pytest.mark.processes, pytest.mark.long]


def test_benchmark_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The processes have the import path of this one, and trl would take the folder tests/vllm for vLLM.
    monkeypatch.setattr(sys, "path", [place for place in sys.path if Path(place) != REPOSITORY / "tests"])
    page = tmp_path / "laptop.json"
    tiny = ["--model=countdown-tiny", "--task=countdown", "--dtypes=float32", "--threads=1"]
    laptop.main([*tiny, "--steps=2", f"--json={page}"])
    printed = capsys.readouterr().out
    for row in ("| entrobench ", "| trl  ", "| trl to entrobench "):
        assert printed.count(row) == 1
    (setting,) = json.loads(page.read_text())["settings"]
    ours, peer = setting["steps"]["entrobench"], setting["steps"]["trl"]
    assert len(ours) == len(peer) == 2, "without the one that warms up"
    least, most = laptop.PROMPTS * laptop.GROUP, laptop.PROMPTS * laptop.GROUP * laptop.LONGEST
    for step in ours + peer:
        assert 0 <= step["system_seconds"] <= step["cpu_seconds"]
        assert step["cpu_seconds"] > 0
        assert least <= step["tokens"] <= most
    assert setting["trl_to_entrobench"]["peak_mib"] == pytest.approx(peer[-1]["peak_mib"] / ours[-1]["peak_mib"])
