"""Records of a cell: its configuration, its state, its metrics, and the provenance of its numbers."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from harness import config, matrix
from harness.base import files
from harness.base.errors import Damaged
from harness.cells import checksums, lease, provenance, state
from harness.cells.log import TAIL, MetricsLog, collapse, last_lines
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec, id_in
from harness.cells.state import Progress, State


def test_spec_round_trip(tmp_path: Path) -> None:
    settings = config.load_config("demo", ["seeds=[3]", "correction.kind=truncated", "train.filter={}"])
    for planned in matrix.cells(settings):
        planned.spec.write(tmp_path)
        read = CellSpec.read(tmp_path)
        assert read == planned.spec
        assert read.config == planned.settled
        assert (read.id, read.identity) == (planned.id, planned.identity)


def test_progress_of_a_cell_that_ends_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(folder: Path) -> None:
        state.change(folder, state="failed", reason="hm")

    state.change(tmp_path, state="running")
    monkeypatch.setattr(lease, "holder", end)
    assert Progress.read(tmp_path) == Progress("failed", "hm")


def test_change_state_by_field(tmp_path: Path) -> None:
    assert State.read(tmp_path) == State()
    assert Progress.read(tmp_path).state == "planned"
    state.change(tmp_path, state="running", durable_step=4, seconds=2.5)
    assert state.change(tmp_path, reason="halfway") == State("running", "halfway", 4, 2.5)
    assert State.read(tmp_path) == State("running", "halfway", 4, 2.5)
    assert Progress.read(tmp_path).state == "stale", "nobody works on it"
    with lease.hold(tmp_path):
        assert Progress.read(tmp_path).state == "running"
    MetricsLog(tmp_path).append(7, 1.0, {"entropy/mean": 0.5})
    checksums.write_checksums(tmp_path)
    provenance.begin_attempt(tmp_path, {"grpo": "1"}, "cpu", None)
    state.change(tmp_path, state="done", reason=None)
    assert Progress.read(tmp_path) == Progress("done", None, 7, [{"entropy/mean": 0.5}])
    state.change(tmp_path, collapsed=7)
    assert Progress.read(tmp_path).reason == "collapsed at step 7"
    state.change(tmp_path, reason="warning: hm")
    assert Progress.read(tmp_path).reason == "collapsed at step 7; warning: hm"


@pytest.mark.parametrize(
    ("entropies", "below", "step"),
    [
        ([2.0, 1.0, 0.5], None, None),
        ([2.0, 1.0, 0.5], 0.5, None),
        ([2.0, 0.4, 0.5, 0.3], 0.5, 2),
        ([0.4, 2.0], 0.5, 1),
        ([float("nan"), 0.4], 0.5, 2),
    ],
)
def test_collapse(entropies: list[float], below: float | None, step: int | None) -> None:
    steps = [{"step": number, "metrics": {"entropy/mean": x}} for number, x in enumerate(entropies, 1)]
    assert collapse([{"step": 0, "metrics": {"eval/countdown/avg": 0.0}}, *steps], below) == step


READERS: dict[str, Callable[[Path], object]] = {
    "state.json": State.read,
    "config.yaml": CellSpec.read,
    "metrics.jsonl": partial(last_lines, count=1),
    "made.json": Made.read,
    "sums.json": checksums.recorded_checksums,
}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"state": "done"}', "\udcff", "null"])
@pytest.mark.parametrize("name", ["state.json", "config.yaml", "metrics.jsonl"])
def test_read_of_a_damaged_record(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode(errors="surrogateescape") + b"\n" * (name == "metrics.jsonl"))
    with pytest.raises(Damaged, match=f"^{tmp_path / name} is damaged: ."):
        READERS[name](tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_read_of_a_pipe(name: str, tmp_path: Path) -> None:
    """A read of it would wait for ever."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(Damaged, match="it is not a file"):
        READERS[name](tmp_path)


def test_progress_of_a_cell_with_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml")
    assert id_in(tmp_path) is None
    State("running").write(tmp_path)
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert Progress.read(tmp_path).reason == f"{tmp_path / 'metrics.jsonl'} is damaged: it is not a file"
    steps, damage = MetricsLog(tmp_path).whole()
    assert (steps, damage is None) == ([], False)
    MetricsLog(tmp_path).write([])
    assert MetricsLog(tmp_path).whole() == ([], None)


def test_read_of_an_invalid_state(tmp_path: Path) -> None:
    for wrong in ("stale", "dnoe"):
        files.write_json(tmp_path / "state.json", {**dataclasses.asdict(State()), "state": wrong})
        with pytest.raises(Damaged, match="planned, running, done, failed"):
            State.read(tmp_path)


def test_last_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path, 3) == []
    log = MetricsLog(tmp_path)
    names = {step: "a" * size for step, size in enumerate((10, 40_000, 20_000, 10))}
    for step, name in names.items():
        log.append(step, 1.0, {name: float(step)})
    assert log.path.stat().st_size < TAIL < log.path.stat().st_size + 20_000

    def steps(count: int) -> list[int]:
        return [line["step"] for line in last_lines(tmp_path, count)]

    assert [steps(count) for count in (1, 2, 9)] == [[3], [2, 3], [0, 1, 2, 3]]
    log.append(4, 1.0, {"b" * 20_000: 4.0})
    assert steps(9) == [2, 3, 4], "the line that begins before the tail is left out"
    with open(log.path, "a") as file:
        file.write('{"step": 5')
    assert steps(2) == [3, 4], "what is being written is no line yet"
    assert steps(1) == [4]


# Provenance


def test_begin_attempt(tmp_path: Path) -> None:
    assert Made.read(tmp_path) is None
    first = provenance.begin_attempt(tmp_path, {"grpo": "abc"}, "cpu", None)
    assert Made.read(tmp_path) == first
    assert first.versions.keys() == {"torch", "transformers", "lm-eval", "math-verify", "python"}
    assert (first.device, first.sources) == ("cpu", {"grpo": "abc"})
    assert first.processor
    second = provenance.begin_attempt(tmp_path, {"grpo": "abd"}, "cuda", "NVIDIA H100", ["no-such-engine"])
    assert second.processor == "NVIDIA H100"
    assert second.attempt != first.attempt
    assert first.tags()["source"] != second.tags()["source"]
    assert {"source.grpo": "abd", "version.python": second.versions["python"]}.items() <= second.tags().items()
    provenance.note_runner(tmp_path, "V2")
    assert Made.read(tmp_path) == dataclasses.replace(second, rounding={"runner": "V2"})
    (tmp_path / "made.json").write_text('{"attempt": 3}')
    with pytest.raises(Damaged, match=r"made\.json is damaged: it must hold attempt, started, version, commit"):
        Made.read(tmp_path)


def test_checkout(tmp_path: Path) -> None:
    assert provenance.checkout(tmp_path) == (None, None)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert provenance.checkout(tmp_path) == (None, None), "without a commit"
    (tmp_path / "code.py").write_text("1")
    subprocess.run([*git, "add", "code.py"], check=True)
    subprocess.run([*git, "commit", "-qm", "First"], check=True)
    commit, dirty = provenance.checkout(tmp_path)
    assert commit is not None
    assert (len(commit), dirty) == (40, False)
    (tmp_path / "notes.txt").write_text("not of the repository")
    assert provenance.checkout(tmp_path) == (commit, False)
    (tmp_path / "code.py").write_text("2")
    assert provenance.checkout(tmp_path) == (commit, True)
    (tmp_path / "site-packages").mkdir()
    assert provenance.checkout(tmp_path / "site-packages") == (None, None), "inside the checkout of something else"
