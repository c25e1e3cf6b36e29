import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cells import Answers, make_spec, set_state, write_cell
from commands import run_command, run_python
from mortal import Killed, Mortal
from patience import wait_until

from harness.base import files, identities
from harness.base.errors import UserError
from harness.cells import lease
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.cells.state import STOP_MARK, State
from harness.config import Config, Correction, Eval, RolloutConfig, Stop, Train
from harness.tracking import store, sync
from harness.tracking.artifacts import artifact_folder
from harness.tracking.reader import Point, reader

pytestmark = pytest.mark.slow

CELL = "0123456789ab"
MADE = Made(
    attempt="a" * 32,
    started=999.5,
    version="0.1.0",
    commit="c" * 40,
    dirty=False,
    sources={"grpo": "1", "clip_b": "2", "countdown": "3"},
    versions={"torch": "2.0", "python": "3.12"},
    processor="A processor",
    device="cpu",
)
EVALUATION = Answers(2, [[0, 1]], problems=["p"])


def make_cell(
    folder: Path, cell: str = CELL, method: str = "grpo+clip_b(share=0.02)", seed: int = 1, began: bool = True
) -> Path:
    config = Config(train=Train(lr=1e-3, steps=4, group=8), eval=Eval(k=4, tasks=["x" * 2000]))
    spec = make_spec(method, seed, id=cell, config=config)
    return write_cell(folder, spec, "running", made=dataclasses.asdict(MADE) if began else None)


def log_steps(folder: Path, *steps: int, offset: float = 0.0) -> None:
    for step in steps:
        metrics = {"entropy/mean": 2.0 - step / 10, "reward/mean": step / 100}
        MetricsLog(folder).append(step, 1000.5 + step + offset, metrics)


def done_cell(folder: Path, *steps: int, **given: Any) -> Path:
    make_cell(folder, **given)
    log_steps(folder, *steps)
    set_state(folder, "done", durable_step=steps[-1])
    return folder


def refused(folder: Path, uri: str, words: str) -> None:
    """Send a cell to a store that cannot take it."""
    with pytest.raises(UserError, match=words):
        sync.sync(folder, uri)


def runs(uri: str) -> list[Any]:
    with store.store(uri, write=False) as client:
        experiment = client.get_experiment_by_name("demo")
        return list(client.search_runs([experiment.experiment_id]))


def history(uri: str, key: str) -> list[tuple[int, int, float]]:
    (run,) = runs(uri)
    with store.store(uri, write=False) as client:
        points = client.get_metric_history(run.info.run_id, key)
    return sorted((point.step, point.timestamp, point.value) for point in points)


def expected_history(*steps: int) -> list[tuple[int, int, float]]:
    return [(step, 1000500 + 1000 * step, 2.0 - step / 10) for step in steps]


# Feeding MLflow


def test_sync_of_a_done_cell(tmp_path: Path, mlflow_uri: str) -> None:
    folder = make_cell(tmp_path / "a cell")
    log_steps(folder, 0, 1, 2)
    EVALUATION.write(folder)
    files.write_lines(folder / "samples" / "train-000001.jsonl", [{"a": 1}])
    set_state(folder, "done", durable_step=2, collapsed=2)
    sync.sync(folder, mlflow_uri)

    (run,) = runs(mlflow_uri)
    assert run.info.run_name == "grpo+clip_b(share=0.02) s1"
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", 999500, 1002500)
    assert history(mlflow_uri, "entropy/mean") == expected_history(0, 1, 2)
    assert run.data.metrics == {"entropy/mean": 1.8, "reward/mean": 0.02}
    expected = {
        "method": "grpo+clip_b(share=0.02)",
        "task": "countdown",
        "model": "tiny",
        "seed": "1",
        "train.lr": "0.001",
        "train.steps": "4",
        "train.group": "8",
        "train.betas": "[0.9, 0.999]",
        "rollout.temperature": "1.0",
        "eval.tasks": ("['" + "x" * 2000)[:500],
    }
    assert run.data.params.items() >= expected.items()
    sections = (Train, RolloutConfig, Correction, Eval, Stop)
    keys = sum(len(dataclasses.fields(section)) for section in sections)
    assert len(run.data.params) == 4 + keys - 1, "eval.k makes no other cell"
    outcome = files.read_json(tmp_path / "mlartifacts" / "demo" / run.info.run_id / "artifacts" / "outcome.json")
    assert outcome == {
        "entropy": [2.0, 1.8],
        "dropped": None,
        "tokens": 0,
        "hours": 0.0,
        "tasks": {
            "countdown": {
                "k": 4,
                "problems": ["p"],
                "right": ["01"],
                "before": None,
                "right_distinct": [1],
                "right_distinct_before": None,
                "solutions": None,
                "flags": [],
                "length": None,
                "distinct": None,
                "distinct_answers": None,
                "after_answer": None,
            }
        },
    }
    own = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
    assert own == {
        "cell": CELL,
        "matrix": "demo",
        "method": "grpo+clip_b(share=0.02)",
        "task": "countdown",
        "model": "tiny",
        "seed": "1",
        "status": "done",
        "reason": "",
        "device": "cpu",
        "collapsed": "2",
        "baseline": "grpo",
        "outcome": identities.hash_of(outcome),
        "lines": "3",
        "lines.sending": "3 1002.5",
        "attempt": "a" * 32,
        "code.version": "0.1.0",
        "code.commit": "c" * 40,
        "code.dirty": "false",
        "processor": "A processor",
        "source": identities.key({"grpo": "1", "clip_b": "2", "countdown": "3"}),
        "source.grpo": "1",
        "source.clip_b": "2",
        "source.countdown": "3",
        "version.torch": "2.0",
        "version.python": "3.12",
    }
    beside = tmp_path / "mlartifacts" / "demo" / run.info.run_id / "artifacts"
    assert run.info.artifact_uri == beside.as_uri()
    for name in ("config.yaml", "evals/countdown-000002.json", "samples/train-000001.jsonl"):
        assert (beside / name).read_bytes() == (folder / name).read_bytes()


def test_sync_of_a_cell_killed_and_resumed(tmp_path: Path, mlflow_uri: str) -> None:
    folder = make_cell(tmp_path / "cell")
    log_steps(folder, 0, 1, 2, 3)
    sync.sync(folder, mlflow_uri)
    assert history(mlflow_uri, "entropy/mean") == expected_history(0, 1, 2, 3), "no checkpoint is needed"
    set_state(folder, "running", durable_step=1)
    (before,) = runs(mlflow_uri)
    for steps in ((2,), (2, 3), (2, 3, 4)):  # fewer, as many and more steps than were sent
        MetricsLog(folder).truncate(1)
        log_steps(folder, *steps, offset=50.0 * len(steps))
        sync.sync(folder, mlflow_uri)
        again = [(step, time + 50_000 * len(steps), value) for step, time, value in expected_history(*steps)]
        assert history(mlflow_uri, "entropy/mean") == [*expected_history(0, 1), *again]
        (run,) = runs(mlflow_uri)
        assert run.info.run_id != before.info.run_id
        before = run
    log_steps(folder, 5)
    sync.sync(folder, mlflow_uri)
    assert [run.info.run_id for run in runs(mlflow_uri)] == [before.info.run_id], "a step more takes nothing back"


PATIENT = """
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from entrobench import Control


@dataclass(frozen=True)
class Patient(Control):
    'Waits in the last step until the file `go` is there.'

    def weights(self, old, advantages_T, batch):
        while batch.progress > 0.7 and not Path("go").exists():
            time.sleep(0.05)
        return torch.ones_like(advantages_T)


METHODS = {"patient": Patient}
"""


@pytest.mark.long
@pytest.mark.processes
def test_curves_of_a_killed_run(tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run is killed in step 4, with steps in MLflow that no checkpoint covers."""
    (tmp_path / "patient_methods.py").write_text(PATIENT)
    words = ["run", "smoke", "methods=[patient]", "baseline=patient", "seeds=[0]", "train.steps=4", "train.prompts=4"]
    words += ["train.group=4", "eval.problems=2", "checkpoint.every=100", "results=.", f"tracking.uri={mlflow_uri}"]
    program = "from harness import cli; from harness.launch import progress; progress.PACE = 0.0; cli.main()"
    words += ["--plugin", "patient_methods"]
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True) as run:
        wait_until(lambda: len(sent_entropies(mlflow_uri)) >= 3 or run.poll() is not None)
        os.killpg(run.pid, signal.SIGKILL)
    killed = sent_entropies(mlflow_uri)
    assert [point.step for point in killed] == [1, 2, 3]
    [folder] = tmp_path.glob("smoke/patient-*")
    assert State.read(folder).durable_step < 1
    (tmp_path / "go").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_command(*words)
    points = [
        Point(line["step"], int(line["time"] * 1000) / 1000, line["metrics"]["entropy/mean"])
        for line in MetricsLog(folder).read()[1:]
    ]
    assert [point.step for point in points] == [1, 2, 3, 4]
    assert sent_entropies(mlflow_uri) == points
    assert not set(killed) & set(points), "these steps were taken back"


def sent_entropies(uri: str) -> list[Point]:
    """Return the points of the only run that an SQLite store has of a cell; none if it has none yet."""
    if not Path(uri.removeprefix("sqlite:///")).exists():
        return []
    curves = []
    with contextlib.suppress(UserError), reader(uri) as source:  # MLflow may still be making its tables
        for experiment in source.experiments().values():
            sent = [run for run in source.runs(experiment) if "cell" in run.tags]
            curves += source.curves(sent, "entropy/mean".__eq__)
    assert len(curves) < 2
    return curves[0].get("entropy/mean", []) if curves else []


@pytest.mark.parametrize("as_earlier", [False, True], ids=["", "a store of an earlier version"])
def test_sync_after_k_was_changed(
    as_earlier: bool, tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K reads answers, and so another one makes no other cell."""
    folder = make_cell(tmp_path / "a cell")
    spec = CellSpec.read(folder)
    for step, k in enumerate((2, 3)):
        evaluation = {**spec.settings["eval"], "by_task": {"a": {"k": k}, "b": {"samples": 8, "k": k}}}
        dataclasses.replace(spec, settings={**spec.settings, "eval": evaluation}).write(folder)
        log_steps(folder, step)
        with monkeypatch.context() as patch:
            if as_earlier and step == 0:
                patch.setattr(sync, "without_k", dict)
            sync.sync(folder, mlflow_uri)
    (run,) = runs(mlflow_uri)
    assert sync.params_without_k(run.data.params)["eval.by_task"] == "{'b': {'samples': 8}}"
    assert history(mlflow_uri, "entropy/mean") == expected_history(0, 1)


@pytest.mark.parametrize("by_hand", [True, False])
def test_sync_of_a_cell_without_a_process(by_hand: bool, tmp_path: Path, mlflow_uri: str) -> None:
    folder = make_cell(tmp_path / "cell")
    log_steps(folder, 0, 1, 2)
    if by_hand:
        (folder / STOP_MARK).touch()
    with lease.hold(folder):
        sync.sync(folder, mlflow_uri)
        (run,) = runs(mlflow_uri)
        assert run.data.tags["status"] == "running", "it still works on its last step"
    sync.sync(folder, mlflow_uri)
    (run,) = runs(mlflow_uri)
    status, reason = ("stopped", "stopped by hand at step 2") if by_hand else ("stale", "")
    assert (run.info.status, run.data.tags["status"], run.data.tags["reason"]) == ("KILLED", status, reason)


def test_sync_of_a_cell_whose_process_ends_meanwhile(
    tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last state may have been read too early, so that it cannot be called stale."""
    folder, read_state = make_cell(tmp_path / "cell"), State.read
    log_steps(folder, 0, 1)
    with contextlib.ExitStack() as process:
        process.enter_context(lease.hold(folder))

        def read_before_the_end(folder: Path) -> State:
            state = read_state(folder)
            process.close()
            return state

        monkeypatch.setattr(State, "read", read_before_the_end)
        sync.sync(folder, mlflow_uri)
    (run,) = runs(mlflow_uri)
    assert run.data.tags["status"] == "running"


def test_sync_of_a_failed_cell_and_its_resumption(tmp_path: Path, mlflow_uri: str) -> None:
    folder = make_cell(tmp_path / "cell")
    log_steps(folder, 0, 1, 2, 3)
    set_state(folder, "failed", durable_step=1, reason="the loss is not finite")
    sync.sync(folder, mlflow_uri)
    (run,) = runs(mlflow_uri)
    assert (run.info.status, run.data.tags["reason"]) == ("FAILED", "the loss is not finite")
    assert history(mlflow_uri, "entropy/mean") == expected_history(0, 1, 2, 3)

    MetricsLog(folder).truncate(1)
    log_steps(folder, 2, offset=50)
    set_state(folder, "running", durable_step=2)
    with lease.hold(folder):
        sync.sync(folder, mlflow_uri)
    (run,) = runs(mlflow_uri)
    assert (run.info.status, run.data.tags["status"], run.data.tags["reason"]) == ("RUNNING", "running", "")
    log_steps(folder, 3, 4)
    set_state(folder, "done", durable_step=4)
    sync.sync(folder, mlflow_uri)
    assert history(mlflow_uri, "entropy/mean") == [*expected_history(0, 1), (2, 1052500, 1.8), *expected_history(3, 4)]


def everything(uri: str) -> Any:
    (run,) = runs(uri)
    own = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    listed = {str(path.relative_to(artifacts)) for path in artifacts.rglob("*.*")}
    info = (run.info.status, run.info.start_time, run.info.end_time)
    values = repr([history(uri, key) for key in ("entropy/mean", "reward/mean")])  # in which NaN equals itself
    return own, run.data.params, info, listed, values


def test_sync_killed_at_any_call(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_cell(tmp_path / "cell")
    log_steps(folder, 0, 1, 2)
    MetricsLog(folder).append(3, 1003.5, {"entropy/mean": math.nan, "reward/mean": math.inf})
    EVALUATION.write(folder)
    set_state(folder, "done", durable_step=3)
    client_of = store.client_of

    def fresh(name: str) -> str:
        (tmp_path / name).mkdir()
        return f"sqlite:///{shutil.copy(migrated, tmp_path / name / 'mlflow.db')}"

    def sync_dying_at(call: float, uri: str) -> Mortal:
        mortal = Mortal(client_of(uri), call)
        with monkeypatch.context() as patch:
            patch.setattr(store, "client_of", lambda uri: mortal)
            sync.sync(folder, uri)
        return mortal

    whole = fresh("whole")
    calls = int(-sync_dying_at(0, whole).calls)
    assert calls >= 8
    for call in range(1, calls + 1):
        (folder / "mlflow.json").unlink(missing_ok=True)
        uri = fresh(f"{call}")
        with pytest.raises(Killed):
            sync_dying_at(call, uri)
        with store.store(uri, write=False) as client:
            done = client.search_runs([e.experiment_id for e in client.search_experiments()], "tags.status = 'done'")
        assert len(done) == (call == calls)
        sync.sync(folder, uri)
        assert everything(uri) == everything(whole)


@pytest.mark.long
def test_sync_of_a_failed_cell_killed_at_any_call(
    tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What such a cell did after its checkpoint is done again, at another time."""
    monkeypatch.setattr(sync, "METRICS_PER_CALL", 3)
    client_of = store.client_of
    for call in range(1, 16):
        folder = make_cell(tmp_path / f"{call}" / "cell")
        uri = f"sqlite:///{shutil.copy(migrated, tmp_path / f'{call}' / 'mlflow.db')}"
        log_steps(folder, 0, 1, 2, 3)
        set_state(folder, "failed", durable_step=1, reason="the loss is not finite")
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            mortal = Mortal(client_of(uri), call)
            patch.setattr(store, "client_of", lambda uri, mortal=mortal: mortal)
            sync.sync(folder, uri)
        MetricsLog(folder).truncate(1)
        log_steps(folder, 2, 3, 4, offset=50)
        set_state(folder, "done", durable_step=4)
        sync.sync(folder, uri)
        for key in ("entropy/mean", "reward/mean"):
            assert [step for step, _, _ in history(uri, key)] == [0, 1, 2, 3, 4], call
    assert mortal.calls > 0, "the last of them was not killed"


def test_sync_of_names_and_values_that_mlflow_changes(tmp_path: Path, mlflow_uri: str) -> None:
    folder = make_cell(tmp_path / "cell")
    values = {
        "a": math.nan,
        "b": math.inf,
        "c": -math.inf,
        "eval/countdown/pass@16": 0.5,
        "weights/clip_b(share)": 0.25,
    }
    MetricsLog(folder).append(0, 1.0, values)
    set_state(folder, "failed", durable_step=-1, reason="the loss is not finite")
    sync.sync(folder, mlflow_uri)
    metrics = runs(mlflow_uri)[0].data.metrics
    assert math.isnan(metrics.pop("a"))
    largest = sys.float_info.max  # as MLflow writes infinity
    named = {"eval/countdown/pass_at_16": 0.5, "weights/clip_b_share_": 0.25}
    assert metrics == {"b": largest, "c": -largest, **named}


def test_sync_of_more_points_than_a_call_takes(tmp_path: Path, mlflow_uri: str) -> None:
    folder = make_cell(tmp_path / "cell")
    for step in range(61):
        MetricsLog(folder).append(step, float(step), {f"m/{i}": step * i / 7 for i in range(40)})
    set_state(folder, "done", durable_step=60)
    sync.sync(folder, mlflow_uri)
    for i in (0, 17, 39):
        assert history(mlflow_uri, f"m/{i}") == [(step, 1000 * step, step * i / 7) for step in range(61)]


def test_sync_to_a_new_store(tmp_path: Path, mlflow_uri: str, migrated: Path) -> None:
    folder = done_cell(tmp_path / "cell", 0, 1, 2)
    sync.sync(folder, mlflow_uri)
    (tmp_path / "other").mkdir()
    other = f"sqlite:///{shutil.copy(migrated, tmp_path / 'other' / 'mlflow.db')}"
    sync.sync(folder, other)
    assert history(other, "entropy/mean") == history(mlflow_uri, "entropy/mean") == expected_history(0, 1, 2)
    # Back to the first, which the folder's id no longer names: its run is found by the tag.
    sync.sync(folder, mlflow_uri)
    assert len(runs(mlflow_uri)) == 1


def test_sync_with_the_run_id_of_another_cell(tmp_path: Path, mlflow_uri: str) -> None:
    one = done_cell(tmp_path / "1", 0, 1)
    two = done_cell(tmp_path / "2", 0, 1, 2, cell="ba9876543210", method="clip_v")
    sync.sync(one, mlflow_uri)
    shutil.copy(one / "mlflow.json", two / "mlflow.json")
    sync.sync(two, mlflow_uri)
    assert {run.data.tags["cell"]: run.data.tags["lines"] for run in runs(mlflow_uri)} == {
        CELL: "2",
        "ba9876543210": "3",
    }


def test_sync_after_a_run_was_deleted(tmp_path: Path, mlflow_uri: str) -> None:
    folder = done_cell(tmp_path / "cell", 0, 1)
    sync.sync(folder, mlflow_uri)
    with store.store(mlflow_uri, write=True) as client:
        client.delete_run(runs(mlflow_uri)[0].info.run_id)
    sync.sync(folder, mlflow_uri)
    assert history(mlflow_uri, "entropy/mean") == expected_history(0, 1)


# Attempts


def test_sync_of_two_attempts(tmp_path: Path, mlflow_uri: str) -> None:
    folder = done_cell(tmp_path / "cell", 0, 1)
    sync.sync(folder, mlflow_uri)
    [first] = runs(mlflow_uri)
    # The folder's id is of another attempt: of its own past, or copied with the rest from somewhere else.
    dataclasses.replace(MADE, attempt="b" * 32, started=1999.5).write(folder)
    set_state(folder, "running", durable_step=-1)
    sync.sync(folder, mlflow_uri)
    [second, again] = sorted(runs(mlflow_uri), key=lambda run: -run.info.start_time)
    assert again.data.to_dictionary() == first.data.to_dictionary()
    assert (second.data.tags["attempt"], second.info.start_time) == ("b" * 32, 1999500)
    assert (second.data.tags["status"], again.data.tags["status"]) == ("stale", "done")
    (folder / "mlflow.json").unlink()
    set_state(folder, "done", durable_step=1)
    sync.sync(folder, mlflow_uri)
    assert {run.info.run_id: run.data.tags["status"] for run in runs(mlflow_uri)} == {
        first.info.run_id: "done",
        second.info.run_id: "done",
    }


@pytest.mark.parametrize("kept", [True, False])
def test_sync_of_a_cell_that_failed_before_it_began(kept: bool, tmp_path: Path, mlflow_uri: str) -> None:
    folder = make_cell(tmp_path / "cell", began=False)
    set_state(folder, "failed", durable_step=-1, reason="its process ended by SIGKILL")
    for _ in range(2):
        sync.sync(folder, mlflow_uri)
        [failed] = runs(mlflow_uri)
        if not kept:
            (folder / "mlflow.json").unlink()
    assert (failed.info.status, failed.data.tags["attempt"]) == ("FAILED", "")
    MADE.write(folder)
    log_steps(folder, 0, 1)
    set_state(folder, "done", durable_step=1)
    sync.sync(folder, mlflow_uri)
    [run] = runs(mlflow_uri)
    assert (run.info.status, run.info.run_id) == ("FINISHED", failed.info.run_id)
    assert run.data.tags.items() >= {**MADE.tags(), "mlflow.source.git.commit": "c" * 40, "reason": ""}.items()
    assert history(mlflow_uri, "entropy/mean") == expected_history(0, 1)


# Stores that were moved, copied, or lost files


def finished(folder: Path, uri: str) -> Path:
    for step in (0, 1):
        dataclasses.replace(EVALUATION, step=step).write(folder)
    sync.sync(done_cell(folder, 0, 1), uri)
    return folder


def test_sync_restores_lost_files(tmp_path: Path, mlflow_uri: str) -> None:
    folder = finished(tmp_path / "cell", mlflow_uri)
    [run] = runs(mlflow_uri)
    evals = tmp_path / "mlartifacts" / "demo" / run.info.run_id / "artifacts" / "evals"
    whole = {path.name: path.read_bytes() for path in evals.iterdir()}
    assert len(whole) == 2
    for spoil in (
        lambda: (evals / "countdown-000001.json").unlink(),
        lambda: (evals / "countdown-000000.json").write_text("{"),
        lambda: shutil.rmtree(tmp_path / "mlartifacts"),
    ):
        spoil()
        sync.sync(folder, mlflow_uri)
        assert {path.name: path.read_bytes() for path in evals.iterdir()} == whole


def test_sync_to_a_store_whose_files_cannot_be_written(tmp_path: Path, mlflow_uri: str) -> None:
    folder = finished(tmp_path / "cell", mlflow_uri)
    shutil.rmtree(tmp_path / "mlartifacts")
    (tmp_path / "mlartifacts").write_text("a file in its place")
    refused(folder, mlflow_uri, r"mlflow\.db cannot be used: .*(Not a directory|File exists)")


def test_artifact_folder_of_moved_and_copied_stores(tmp_path: Path, mlflow_uri: str) -> None:
    """A store that was moved, one that was copied, and a database that was copied alone."""
    finished(tmp_path / "cell", mlflow_uri)
    [run] = runs(mlflow_uri)
    part = Path("mlartifacts") / "demo" / run.info.run_id / "artifacts"
    for name in ("copy", "alone", "moved"):
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "mlflow.db", tmp_path / name)
    shutil.copytree(tmp_path / "mlartifacts", tmp_path / "copy" / "mlartifacts")

    def places() -> list[Path]:
        folders = []
        for name in (".", "copy", "alone", "moved"):
            uri = f"sqlite:///{tmp_path / name / 'mlflow.db'}"
            with store.store(uri, write=False) as client:
                place = artifact_folder(client.get_run(run.info.run_id).info.artifact_uri, uri)
            assert place is not None
            folders.append(place.relative_to(tmp_path))
        return folders

    assert places() == [part, "copy" / part, part, part]
    (tmp_path / "mlartifacts").rename(tmp_path / "moved" / "mlartifacts")
    assert places() == [part, "copy" / part, "alone" / part, "moved" / part]


@pytest.mark.parametrize("copied", ["all", "database"])
def test_sync_to_a_copied_store(copied: str, tmp_path: Path, mlflow_uri: str) -> None:
    finished(tmp_path / "original" / "cell", mlflow_uri)
    [run] = runs(mlflow_uri)
    copy = tmp_path / "a cöpy of 100%" / "results"
    copy.mkdir(parents=True)
    shutil.copy(tmp_path / "mlflow.db", copy)
    shutil.copytree(tmp_path / "original" / "cell", copy / "cell")
    if copied == "all":
        shutil.copytree(tmp_path / "mlartifacts", copy / "mlartifacts")
    EVALUATION.write(copy / "cell")
    part = Path("mlartifacts") / "demo" / run.info.run_id / "artifacts"
    before = sorted((tmp_path / part).rglob("*")), (tmp_path / "mlflow.db").read_bytes()
    uri = f"sqlite:///{copy / 'mlflow.db'}"
    sync.sync(copy / "cell", uri)
    assert (sorted((tmp_path / part).rglob("*")), (tmp_path / "mlflow.db").read_bytes()) == before
    names = {str(path.relative_to(copy / part)) for path in (copy / part).rglob("*.*")}
    assert names == {"config.yaml", "outcome.json", *(f"evals/countdown-{step:06d}.json" for step in range(3))}


def test_sync_with_a_chosen_artifact_location(tmp_path: Path, mlflow_uri: str) -> None:
    chosen = tmp_path / "large disk" / "runs"
    with store.store(mlflow_uri, write=True) as client:
        client.create_experiment("demo", chosen.as_uri())
    folder = finished(tmp_path / "cell", mlflow_uri)
    [run] = runs(mlflow_uri)
    assert run.info.artifact_uri == f"{chosen.as_uri()}/{run.info.run_id}/artifacts"
    assert (chosen / run.info.run_id / "artifacts" / "evals" / "countdown-000001.json").exists()
    (tmp_path / "other").mkdir()
    other = f"sqlite:///{shutil.copy(tmp_path / 'mlflow.db', tmp_path / 'other')}"
    sync.sync(folder, other)
    assert runs(other)[0].info.artifact_uri == run.info.artifact_uri


def test_second_sync_needs_no_client(tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = done_cell(tmp_path / "cell", 0, 1)
    assert sync.sync(folder, mlflow_uri)
    mortal = Mortal(store.client_of(mlflow_uri), calls=math.inf)
    monkeypatch.setattr(store, "client_of", lambda uri: mortal)
    assert not sync.sync(folder, mlflow_uri)
    assert mortal.calls == math.inf


# A store that is not there


def test_sync_to_a_locked_store(tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_cell(tmp_path / "cell")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **given: connect(path, **{"timeout": 0.05, **given}))
    with connect(tmp_path / "mlflow.db") as holder:
        holder.execute("BEGIN EXCLUSIVE")
        refused(folder, mlflow_uri, r"mlflow\.db cannot be used: ")
    sync.sync(folder, mlflow_uri)
    assert len(runs(mlflow_uri)) == 1


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("sqlite:///{}/notes.db", r"notes\.db cannot be used: "),
        ("sqlite:///{}/notes.db/mlflow.db", "cannot be used: .*(Not a directory|File exists)"),
        ("http://127.0.0.1:9", r"the MLflow store at http://127\.0\.0\.1:9 cannot be used: "),
    ],
)
def test_sync_to_what_is_no_store(uri: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database " * 100)
    refused(make_cell(tmp_path / "cell"), uri.format(tmp_path), words)


def test_sync_to_a_deleted_experiment(tmp_path: Path, mlflow_uri: str) -> None:
    folder = make_cell(tmp_path / "cell")
    sync.sync(folder, mlflow_uri)
    with store.store(mlflow_uri, write=True) as client:
        client.delete_experiment(client.get_experiment_by_name("demo").experiment_id)
    refused(folder, mlflow_uri, "the MLflow experiment 'demo' was deleted; .*MLFLOW_TRACKING_URI=sqlite:/.*restore")


@pytest.mark.processes
def test_sync_prints_nothing_and_leaves_no_files(tmp_path: Path) -> None:
    folder = done_cell(tmp_path / "cell", 0, 1)
    (tmp_path / "here").mkdir()
    code = (
        "import sys; from pathlib import Path; from harness.tracking import sync; "
        "assert 'mlflow' not in sys.modules; "
        f"sync.sync(Path({str(folder)!r}), 'sqlite:///results/mlflow.db'); assert 'torch' not in sys.modules"
    )
    done = run_python("-W", "error::ResourceWarning", "-c", code, cwd=tmp_path / "here", HOME=str(tmp_path))
    assert (done.stdout, done.stderr) == ("", "")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["results"]
    assert {path.name for path in (tmp_path / "here" / "results").iterdir()} == {
        "mlflow.db",
        "mlflow.db.lock",
        "mlartifacts",
    }
    assert json.loads((folder / "mlflow.json").read_text()).keys() == {"run"}
