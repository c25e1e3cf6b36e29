import json
import sys
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.cells.log import MetricsLog
from harness.tracking import export


def test_write_tensorboard_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    log, logs = MetricsLog(tmp_path / "cell"), tmp_path / "logs" / "demo" / "cell"
    log.path.parent.mkdir()
    logs.mkdir(parents=True)
    (logs / "notes.txt").write_text("kept")
    for step in range(3):
        log.append(step, 1e9 + step, {"entropy/mean": 2.0 - step / 2, "eval/avg": step / 4})
        export.write_tensorboard(tmp_path / "cell", logs)  # each time anew
    file, notes = sorted(logs.iterdir())
    assert notes.read_text() == "kept"
    points = [
        (event.step, event.wall_time, {value.tag: value.tensor.float_val[0] for value in event.summary.value})
        for event in EventFileLoader(str(file)).Load()
        if event.summary.value
    ]
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert points == [(line["step"], line["time"], line["metrics"]) for line in lines]


def test_write_tensorboard_run_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[tensorboard\]'"):
        export.write_tensorboard(tmp_path, tmp_path / "logs")
