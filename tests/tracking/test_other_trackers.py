"""Cells as runs of TensorBoard and of Weights & Biases."""

import json
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from boards import NO_STORE, smoke_matrix
from cells import write_cell
from commands import refusal, run_command
from matrices import specs

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


def records_of(written: bytes) -> Iterator[bytes]:
    """Read LevelDB's log format behind a header of 7 bytes: checksum, length, and which part of a record it is."""
    assert len(written) < 2**15, "one block"
    place = 7
    while place < len(written):
        _, length, part = struct.unpack_from("<IHB", written, place)
        assert part == 1, "a whole record"
        yield written[place + 7 : (place := place + 7 + length)]


def test_write_wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    one, other = specs("demo", ["grpo", "clip_b"], ["countdown"], ["tiny"], [3])
    logs = tmp_path / "logs"
    for spec in (one, other):
        folder = tmp_path / spec.id
        steps = [{"entropy/mean": 2.0 - step / 2, "eval/avg": step / 4} for step in range(3)]
        write_cell(folder, spec, steps=steps)
        for _ in range(2):
            export.write_wandb_run(folder, logs)  # each time anew
    paths = {path.stem.removeprefix("run-"): path for path in logs.glob("wandb/offline-run-*/*.wandb")}
    assert sorted(paths) == sorted(path.name[-12:] for path in logs.glob("wandb/offline-run-*"))
    assert paths.keys() == {one.id, other.id}

    records = [Record.FromString(data) for data in records_of(paths[other.id].read_bytes())]
    [run] = [record.run for record in records if record.HasField("run")]
    assert (run.run_id, run.project, run.display_name, run.run_group) == (other.id, "demo", "clip_b s3", "clip_b")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["method"] == "clip_b"
    assert config["train"] == json.loads(json.dumps(other.settings["train"]))
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    lines = [json.loads(line) for line in (tmp_path / other.id / "metrics.jsonl").read_text().splitlines()]
    expected = [{**line["metrics"], "_step": line["step"], "_timestamp": line["time"]} for line in lines]
    assert [{key: row[key] for key in expected[0]} for row in rows] == expected


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_sync_without_a_package_feeds_nothing(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smoke_matrix(tmp_path, NO_STORE, name="smoke").write_all()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setitem(sys.modules, package, None)
    said = refusal("sync", "smoke", f"results={tmp_path}", f"--{package}", str(tmp_path), cwd=tmp_path)
    assert said == f"entrobench: {package} is not installed; run `pip install -e '.[{package}]'`\n"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("option", ["--tensorboard", "--wandb"])
def test_sync_refuses_a_place_before_it_feeds(option: str, tmp_path: Path) -> None:
    """A store in this folder would be made if MLflow were fed."""
    smoke_matrix(tmp_path, NO_STORE, name="smoke").write_all()
    (tmp_path / "afile").touch()
    before = sorted(tmp_path.rglob("*"))
    for place in ("afile", "afile/x"):
        sentence = f"entrobench: {option} {place} cannot be written: afile is not a folder\n"
        assert refusal("sync", "smoke", f"results={tmp_path}", option, place, cwd=tmp_path) == sentence
    assert sorted(tmp_path.rglob("*")) == before


def test_sync_exports_adopted_cells(tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri, "methods=[grpo]", "seeds=[0]").write_all()
    [cell] = made.cells
    adopted = shutil.copytree(cell.folder, cell.folder.with_name("grpo@other"))
    exported = []
    monkeypatch.setattr(export, "check_installed", lambda package: None)
    monkeypatch.setattr(export, "write_tensorboard", lambda folder, logs: exported.append(folder))
    said = run_command("sync", *made.given, "--tensorboard", str(tmp_path / "my curves"))
    assert exported == [cell.folder, adopted]
    assert f"tensorboard --logdir '{tmp_path}/my curves'" in said.replace("\n", " ")
