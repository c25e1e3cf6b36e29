"""The start of an attempt at a cell."""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cells import set_state
from patience import HANG, wait_until

import baselines
from harness import config, matrix, runs
from harness.base import files
from harness.base.errors import UserError
from harness.base.terminal import console
from harness.cells import lease, source_digest, state
from harness.cells.provenance import Made
from harness.cells.state import State
from harness.commands import status
from harness.diagnose.readers import read_run
from harness.diagnose.rules import diagnose_run
from harness.launch import cell, launcher
from harness.launch.status_writer import StatusWriter
from harness.rollout import models
from tasks.countdown import Countdown


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> matrix.Cell:
    """Return a cell as a launcher leaves it, for a process whose log is not redirected."""
    monkeypatch.setattr(cell, "write_log", lambda place: None)
    monkeypatch.setattr(cell, "run_cell", lambda place, *_: set_state(place, "done", durable_step=7))
    planned_cell = matrix.cells(config.load_config("smoke", [f"results={tmp_path}"]))[1]
    planned_cell.spec.write(planned_cell.folder)
    return planned_cell


def attempt_of(cell: matrix.Cell) -> Made:
    attempt = Made.read(cell.folder)
    assert attempt is not None
    return attempt


def test_attempt_names_code_and_base_model(planned: matrix.Cell) -> None:
    cell.main(str(planned.folder))
    attempt, model = attempt_of(planned), models.resolve("countdown-tiny")
    assert attempt.sources == planned.sources
    assert planned.sources.keys() == {"grpo", "clip_b", "countdown"}
    assert attempt.device == "cpu"
    assert planned.progress().state == "done"
    assert attempt.base_model == model.digest(model.folder())
    assert attempt.harness == source_digest.harness_digest()
    assert attempt.tags().items() >= {("model.digest", attempt.base_model), ("code.harness", attempt.harness)}


def test_attempt_goes_on(planned: matrix.Cell) -> None:
    cell.main(str(planned.folder))
    first = attempt_of(planned)
    (planned.folder / "metrics.jsonl").write_text("")
    for before in ("done", "failed", "running"):
        state.change(planned.folder, state=before, seconds=5.0)
        cell.main(str(planned.folder))
        assert attempt_of(planned) == first
        assert State.read(planned.folder).seconds == 5.0


@pytest.mark.parametrize("edited", ["clip_b", "countdown"])
def test_attempt_refuses_another_version(edited: str, planned: matrix.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the source that this process has imported, not a later edit on disk."""
    classes = {"clip_b": baselines.ClipB, "countdown": Countdown}
    monkeypatch.setitem(cell.IMPORTED, classes[edited], "another")
    with pytest.raises(SystemExit, match=f"failed: {edited} was edited while the matrix ran"):
        cell.main(str(planned.folder))
    assert State.read(planned.folder).state == "failed"
    assert Made.read(planned.folder) is None


@pytest.mark.parametrize("before", ["done", "failed", "running"])
def test_attempt_with_another_base_model(before: str, planned: matrix.Cell) -> None:
    """Results moved to a machine with another base model: done cells count, half-done cells restart."""
    cell.main(str(planned.folder))
    old = dataclasses.replace(attempt_of(planned), base_model="another")
    old.write(planned.folder)
    state.change(planned.folder, state=before)
    assert planned.progress().state in (before, "stale"), "its key is that of the recipe"
    cell.main(str(planned.folder))
    assert (attempt_of(planned) == old) == (before == "done")
    log = planned.folder / "log.txt"
    assert log.exists() == (before != "done")
    if log.exists():
        assert log.read_text() == "warning: it began from another base model; training starts at step 0\n"


def test_attempt_of_an_earlier_version_goes_on(planned: matrix.Cell) -> None:
    """Records of earlier versions have neither of the two."""
    cell.main(str(planned.folder))
    given = files.read_json(planned.folder / "made.json")
    old = {key: value for key, value in given.items() if key not in ("base_model", "harness")}
    files.write_json(planned.folder / "made.json", old)
    state.change(planned.folder, state="failed")
    cell.main(str(planned.folder))
    assert (attempt_of(planned).attempt, attempt_of(planned).base_model) == (given["attempt"], None)


def test_main_refuses_a_changed_model(tmp_path: Path, planned: matrix.Cell) -> None:
    folder = Path(shutil.copytree(models.resolve("countdown-tiny").folder(), tmp_path / "mine"))
    [mine] = matrix.cells(config.load_config("smoke", ["methods=[grpo]", f"models=[{folder}]", f"results={tmp_path}"]))
    mine.spec.write(mine.folder)
    State("failed", "of an earlier attempt").write(mine.folder)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SystemExit, match=r"the model .*mine was changed while the matrix ran; `entrobench run` plans"):
        cell.main(str(mine.folder))
    assert str(State.read(mine.folder).reason).startswith(f"the model {folder} was changed")
    assert Made.read(mine.folder) is None


@pytest.mark.slow
def test_main_of_a_cell_that_collapses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cell, "write_log", lambda place: None)
    short = ["train.prompts=4", "train.group=4", "eval.problems=2", "methods=[grpo]", f"results={tmp_path}"]
    settings = config.load_config("smoke", [*short, "stop.entropy_below=100"])
    (planned,) = matrix.cells(settings)
    planned.spec.write(planned.folder)
    cell.main(str(planned.folder))
    state_now = State.read(planned.folder)
    assert (state_now.state, state_now.collapsed, state_now.durable_step) == ("done", 1, 1)
    assert sorted(path.name for path in planned.folder.glob("evals/*")) == [f"countdown-00000{n}.json" for n in (0, 1)]
    capsys.readouterr()
    monkeypatch.setattr(console, "_width", 200)
    monkeypatch.setattr(status, "config_of_arguments", lambda given: settings)
    status.call(argparse.Namespace())
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "grpo" in line)
    assert row.split()[:5] == ["grpo", "seed", "0", "done", "1/20"]
    assert row.rstrip().endswith("collapsed at step 1")


@pytest.mark.slow
def test_run_matrix_without_a_signal(
    tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cell, "write_log", lambda place: None)
    short = ["train.prompts=4", "train.group=4", "eval.problems=2", "stop.without_signal=3", "rollout.max_new_tokens=1"]
    short += ["methods=[grpo]", f"results={tmp_path}", f"tracking.uri={mlflow_uri}"]
    settings = config.load_config("smoke", short)
    (planned,) = matrix.cells(settings)

    def run_here(todo: list[matrix.Cell], *_: object) -> None:
        todo[0].spec.write(todo[0].folder)
        cell.main(str(todo[0].folder))

    monkeypatch.setattr(launcher, "run_cells", run_here)
    assert runs.run_matrix(settings) == 1
    sentence = "no step had a signal, so nothing was learned"
    why = "all 48 training rewards were 0, all answers unparsed, no response ended within rollout.max_new_tokens"
    record = State.read(planned.folder)
    assert (record.state, record.untrained, record.durable_step) == ("done", True, 3)
    assert str(record.reason).startswith(f"{sentence}: {why}; ")
    output = " ".join(capsys.readouterr().out.split())
    above, table, below = output.partition("countdown, countdown-tiny method")
    assert "matrix smoke: 1 cell, 0 done before, 1 to run " in above
    assert "a cell ends early after 3 steps in a row without a signal (stop)" in above
    assert f"grpo seed 0: {sentence} ({why}; " in above
    assert table
    assert sentence not in below
    told = "1 of 1 cell learned nothing, since no step had a signal; above the table stands why"
    assert told in below
    assert f"`entrobench diagnose {planned.folder}` says more" in below
    assert diagnose_run(read_run(planned.folder)).verdict == "nothing was learned"


def test_stop_cells_before_they_begin(planned: matrix.Cell) -> None:
    settings = planned.config
    files.write_json(settings.folder / matrix.MARKER, {"matrix": settings.name})
    (marked,) = runs.stop_cells(settings, planned.method, planned.seed, undo=False)
    assert marked == planned
    cell.main(str(planned.folder))
    assert Made.read(planned.folder) is None
    assert (planned.progress().state, planned.progress().reason) == ("stopped", "stopped by hand before it began")
    assert runs.unfinished([planned]) == []
    runs.stop_cells(settings, planned.method, None, undo=True)
    assert runs.unfinished([planned]) == [planned]
    cell.main(str(planned.folder))
    assert planned.progress().state == "done"
    with pytest.raises(UserError, match=r"--seed is 7; allowed: 0"):
        runs.stop_cells(settings, planned.method, 7, undo=False)


def test_main_of_a_cell_that_cannot_begin(planned: matrix.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    given = planned.spec
    dataclasses.replace(given, settings=given.settings | {"plugins": ["no_such_plugin"]}).write(planned.folder)
    with pytest.raises(SystemExit, match="failed: plugin no_such_plugin cannot be imported"):
        cell.main(str(planned.folder))
    state_now = State.read(planned.folder)
    assert state_now.state == "failed"
    assert str(state_now.reason).startswith("plugin no_such_plugin cannot be imported")
    assert Made.read(planned.folder) is None
    set_state(planned.folder, "done", seconds=0.0)
    cell.main(str(planned.folder))
    assert State.read(planned.folder) == State("done"), "what was done before is not taken back"


@pytest.mark.processes
def test_ranks_ended_by_sigterm_leave_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "python_command", lambda *_: ["cat"])  # which ends with its stdin, as a rank does
    planned = matrix.cells(config.load_config("smoke", [f"results={tmp_path}", "hardware.ranks=2"]))[0]
    planned.spec.write(planned.folder)
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    process = multiprocessing.get_context("fork").Process(target=cell.main, args=(str(planned.folder),))
    process.start()
    wait_until(lambda: any(temporary.iterdir()))
    process.terminate()
    process.join(HANG)
    assert (process.exitcode, list(temporary.iterdir())) == (128 + signal.SIGTERM, [])


def stand_still(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make progress for five seconds of its own clock, and then stop like a rank that waits for a hanging one."""
    now, status = 0.0, StatusWriter(folder)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        (folder / "now").write_text(str(now))
        if now < 5:
            status.heartbeat.forward()
        time.sleep(0.02)  # so that a file that changes again has another time

    cell.write_log(folder)
    with lease.hold(folder) as held:
        assert held is not None
        with lease.fenced(held), status.heartbeat.kept(held.directory, 0):
            (held.directory / "standing-1").write_text("rollout of step 3")
            status.heartbeat.enter("update")
            monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep, time=time.time))
            status.end_when_stalled(held.directory, 0.0625)
            time.sleep(HANG)


@pytest.mark.processes
def test_cell_without_progress_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = multiprocessing.get_context("fork").Process(target=stand_still, args=(tmp_path, monkeypatch))
    process.start()
    process.join(HANG)
    assert process.exitcode == 1
    assert (tmp_path / "now").read_text() == "9.375", "more than 3.75 s after the fifth look, which saw progress"
    reason = "rank 1 has stood still in rollout of step 3 for 0.0625 minutes (hardware.stall_minutes)"
    assert (State.read(tmp_path).state, State.read(tmp_path).reason) == ("failed", reason)
    assert "in stand_still" in (tmp_path / "log.txt").read_text()
