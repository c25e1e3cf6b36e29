"""The log that verl's own logger writes is read as diagnose expects it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("orjson", reason="needs the package verl; make test-verl runs it")
pytest.importorskip("verl", reason="needs the package verl; make test-verl runs it")

from verl.utils.tracking import Tracking

from harness.diagnose.readers import read_run
from harness.diagnose.signals import VERL

RECORDS = [
    {"actor/entropy": 0.9, "actor/grad_norm": np.float64(0.25), "training/global_step": 1, "name": "text"},
    {"actor/entropy": np.float32(0.5), "actor/grad_norm": float("nan"), "training/global_step": 2},
]


def test_the_file_log_of_verl_gives_the_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
    tracking = Tracking("project", "experiment", ["file"])
    for step, record in enumerate(RECORDS, 1):
        tracking.log(record, step)
    tracking.finish()
    run = read_run(path)
    entropy, gradient = run.signal("entropy"), run.signal("gradient")
    assert entropy is not None
    assert gradient is not None
    assert run.trainer == VERL
    assert (entropy.steps, entropy.values) == ([1, 2], [0.9, 0.5])
    assert (gradient.values, gradient.lost) == ([0.25], 2)
