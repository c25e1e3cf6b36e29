"""Logs that verl's own loggers write are read as diagnose expects them."""

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


def test_the_console_and_the_file_of_verl_give_the_same_curves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, console = tmp_path / "file.jsonl", tmp_path / "console.log"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(file))
    tracking = Tracking("project", "experiment", ["console", "file"])
    for step, record in enumerate(RECORDS, 1):
        tracking.log(record, step)
    tracking.finish()
    console.write_text(capsys.readouterr().out)
    runs = [read_run(console), read_run(file)]
    for run in runs:
        entropy, gradient = run.signal("entropy"), run.signal("gradient")
        assert entropy is not None
        assert gradient is not None
        assert run.trainer == VERL
        assert (entropy.steps, entropy.values) == ([1, 2], [0.9, 0.5])
        assert (gradient.values, gradient.lost) == ([0.25], 2)
    assert runs[0].curves == runs[1].curves
