import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cells import write_cell
from matrices import specs

from harness.base.errors import UserError
from harness.tracking import export


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


def test_write_wandb_run_without_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[wandb\]'"):
        export.write_wandb_run(tmp_path, tmp_path / "logs")
