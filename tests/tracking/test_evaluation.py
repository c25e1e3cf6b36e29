"""An evaluation without training in MLflow: everything exactly once, after any interruption."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from mortal import Killed, Mortal

from harness.base import files
from harness.cells.provenance import Made
from harness.tracking import evaluation, store
from harness.tracking.evaluation import Evaluated

pytestmark = pytest.mark.slow

MADE = Made("a" * 32, 999.5, "0.1.0", None, None, {"sums": "1"}, {"torch": "2.0"}, "A processor", "cpu")
METRICS = {"eval/sums/avg": 0.25, "eval/sums/avg.low": 0.125, "eval/sums/pass@4": 0.5}
JSON = ("result.json", "settings.json", "made.json")


@pytest.fixture
def one(tmp_path: Path) -> Evaluated:
    folder = tmp_path / "out" / "sums-1"
    for name in JSON[:2]:
        files.write_json(folder / name, {"name": name})
    MADE.write(folder)
    files.write_lines(folder / "samples" / "0000.jsonl", [{"problem": "1"}])
    params = {"model": "tiny", "eval.samples": 4, "task.instruction": "x" * 600}
    return Evaluated("key-1", "tiny sums", folder, MADE, params, {"notes": "y" * 600, "model": "tiny"}, METRICS)


def runs(uri: str) -> list[Any]:
    with store.store(uri, write=False) as client:
        experiment = client.get_experiment_by_name("eval")
        return [] if experiment is None else list(client.search_runs([experiment.experiment_id]))


def artifacts(run: Any) -> dict[str, bytes]:
    place = Path(run.info.artifact_uri.removeprefix("file://"))
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*.*")}


def everything(uri: str) -> Any:
    [run] = runs(uri)
    with store.store(uri, write=False) as client:
        points = {key: client.get_metric_history(run.info.run_id, key) for key in sorted(run.data.metrics)}
    assert {point.timestamp for each in points.values() for point in each} == {run.info.start_time}
    history = {key: [(point.step, point.value) for point in each] for key, each in points.items()}
    tags = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
    return history, tags, run.data.params, run.info.status, artifacts(run)


def test_sync_evaluation(one: Evaluated, tmp_path: Path, mlflow_uri: str) -> None:
    evaluation.sync_evaluation(one, mlflow_uri)
    [run] = runs(mlflow_uri)
    assert run.info.run_name == "tiny sums"
    assert run.info.artifact_uri == (tmp_path / "mlartifacts" / "eval" / run.info.run_id / "artifacts").as_uri()
    history, tags, params, status, kept = everything(mlflow_uri)
    assert status == "FINISHED"
    assert history == {
        "eval/sums/avg": [(0, 0.25)],
        "eval/sums/avg.low": [(0, 0.125)],
        "eval/sums/pass_at_4": [(0, 0.5)],
    }
    assert params == {"model": "tiny", "eval.samples": "4", "task.instruction": "x" * 500}
    assert tags == {**MADE.tags(), "evaluation": "key-1", "model": "tiny", "notes": "y" * 500}
    assert kept == {
        **{f"evaluation/{name}": (one.folder / name).read_bytes() for name in JSON},
        "samples/0000.jsonl": (one.folder / "samples" / "0000.jsonl").read_bytes(),
    }
    with store.store(mlflow_uri, write=False) as client:
        assert "entrobench eval" in client.get_experiment_by_name("eval").tags["mlflow.note.content"]


def test_sync_evaluation_twice(one: Evaluated, mlflow_uri: str) -> None:
    evaluation.sync_evaluation(one, mlflow_uri)
    before = everything(mlflow_uri)
    evaluation.sync_evaluation(one, mlflow_uri)
    assert everything(mlflow_uri) == before
    other = dataclasses.replace(one, key="key-2", metrics={"eval/sums/avg": 0.5})
    for _ in range(2):
        evaluation.sync_evaluation(other, mlflow_uri)
    assert sorted(run.data.metrics["eval/sums/avg"] for run in runs(mlflow_uri)) == [0.25, 0.5]


def test_sync_evaluation_restores_what_was_lost(one: Evaluated, mlflow_uri: str) -> None:
    evaluation.sync_evaluation(one, mlflow_uri)
    [run] = runs(mlflow_uri)
    before = everything(mlflow_uri)
    for lost in ("samples/0000.jsonl", "evaluation/result.json"):
        (Path(run.info.artifact_uri.removeprefix("file://")) / lost).unlink()
        evaluation.sync_evaluation(one, mlflow_uri)
        assert everything(mlflow_uri) == before
    with store.store(mlflow_uri, write=True) as client:
        client.delete_run(run.info.run_id)
    evaluation.sync_evaluation(one, mlflow_uri)
    assert everything(mlflow_uri) == before


def test_sync_evaluation_killed_at_any_call(
    one: Evaluated, tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_of = store.client_of

    def fresh(name: str) -> str:
        (tmp_path / name).mkdir()
        return f"sqlite:///{shutil.copy(migrated, tmp_path / name / 'mlflow.db')}"

    def dying_at(call: float, uri: str) -> Mortal:
        mortal = Mortal(client_of(uri), call)
        with monkeypatch.context() as patch:
            patch.setattr(store, "client_of", lambda uri: mortal)
            evaluation.sync_evaluation(one, uri)
        return mortal

    whole = fresh("whole")
    calls = int(-dying_at(0, whole).calls)
    assert calls >= 6
    for call in range(1, calls + 1):
        uri = fresh(str(call))
        with pytest.raises(Killed):
            dying_at(call, uri)
        assert sum(run.info.status == "FINISHED" for run in runs(uri)) == (call == calls)
        evaluation.sync_evaluation(one, uri)
        assert everything(uri) == everything(whole)
