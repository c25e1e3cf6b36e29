"""Results on MLflow's own pages: the summary of a matrix, and final numbers at its runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import json_rows, show_table, smoke_matrix
from frames import leaderboard_row

from harness.table import formats, publish
from harness.table.statistics import Estimate
from harness.tracking import store

pytestmark = pytest.mark.slow


def held(uri: str, name: str = "made") -> tuple[Any, list[Any], dict[str, Any]]:
    """Return the experiment, its summaries, and the runs of its cells."""
    with store.store(uri, write=False) as client:
        experiment = client.get_experiment_by_name(name)
        runs = client.search_runs([experiment.experiment_id])
    summaries = [run for run in runs if run.data.tags.get("entrobench.kind") == "summary"]
    return experiment, summaries, {run.data.tags["cell"]: run for run in runs if run not in summaries}


def test_publish_replaces_the_summary(tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_uri)  # where `load_table` looks for runs
    made = smoke_matrix(tmp_path, mlflow_uri)
    made.send(made.cells[0])
    for _ in range(2):
        publish.publish(made.config, made.cells)
    made.send_all()
    experiment, (one,), runs = held(mlflow_uri)
    assert len(runs) == 6
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert "entrobench leaderboard" in experiment.tags["mlflow.note.content"]
    rows = json_rows("--experiment", "made", "--uri", mlflow_uri)
    with store.store(mlflow_uri, write=False) as client:
        table = client.load_table(experiment.experiment_id, "leaderboard.json", extra_columns=["run_id"])
        assert set(table["run_id"]) == {one.info.run_id}
        assert list(table["method"]) == ["base model", "grpo", "clip_b", "ppo"]
        assert list(table["Avg@K"]) == pytest.approx([row["avg_at_k"]["mean"] for row in rows], abs=1e-12)
        lows = [row["delta_to_baseline"]["low"] for row in rows]
        assert list(table["Avg@K - grpo, low"]) == pytest.approx(
            [np.nan if low is None else low for low in lows], abs=1e-12, nan_ok=True
        )
        run = one.info.run_id
        places = {a.path: client.download_artifacts(run, a.path) for a in client.list_artifacts(run)}
    assert sorted(places) == ["leaderboard.json", "leaderboard.md", "matrix.json", "outcomes.json"]
    assert Path(places["leaderboard.md"]).read_text() == show_table(
        "--experiment", "made", "--uri", mlflow_uri, "--format", "md"
    )
    assert one.data.tags["mlflow.source.name"] == "entrobench"


def test_publish_only_reads_an_unchanged_table(
    tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri, "methods=[grpo,ppo]", "seeds=[0]").send_all()
    _, (one,), _ = held(mlflow_uri)
    folder = Path(one.info.artifact_uri.removeprefix("file://"))
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    opened: list[str] = []
    open_store = publish.store

    def watched(uri: str, *, write: bool) -> Any:
        opened.append(uri)
        return open_store(uri, write=write)

    monkeypatch.setattr(publish, "store", watched)
    rows = publish.publish(made.config, made.cells)
    assert (publish.publish(made.config, made.cells), opened) == (rows, [])

    def spoil_number() -> None:
        with store.store(mlflow_uri, write=True) as client:
            [run] = [run for run in held(mlflow_uri)[2].values() if run.data.tags["cell"] == made.cells[0].id]
            client.log_metric(run.info.run_id, "final/avg_at_k", 2.0)

    for spoil in (
        lambda: (folder / "leaderboard.md").write_text("another table"),
        lambda: (folder / "outcomes.json").unlink(),
        spoil_number,
    ):
        opened.clear()
        spoil()
        assert publish.publish(made.config, made.cells) == rows
        assert opened == [mlflow_uri]
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    made.config.baseline = "ppo"
    publish.publish(made.config, made.cells)
    assert b"Avg@K - ppo" in (folder / "leaderboard.json").read_bytes()


def test_publish_after_an_interruption(tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri)
    made.send(made.cells[0])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mlflow.MlflowClient.set_terminated", interrupt)
        with pytest.raises(KeyboardInterrupt):
            publish.publish(made.config, made.cells)
    publish.publish(made.config, made.cells)
    _, [one], _ = held(mlflow_uri)
    assert one.info.status == "FINISHED"


def test_publish_writes_final_numbers_once(tmp_path: Path, mlflow_uri: str) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri).send_all()
    publish.publish(made.config, made.cells)
    _, _, runs = held(mlflow_uri)
    drawn = {
        cell.id: (np.random.default_rng([cell.seed, *cell.method.encode()]).random((6, 16)) < 0.3).mean()
        for cell in made.cells
    }
    for cell in made.cells:
        (baseline,) = [other for other in made.cells if (other.method, other.seed) == ("grpo", cell.seed)]
        metrics = runs[cell.id].data.metrics
        assert metrics["final/avg_at_k"] == pytest.approx(drawn[cell.id], abs=1e-12)
        assert metrics["final/delta_avg_at_k"] == pytest.approx(drawn[cell.id] - drawn[baseline.id], abs=1e-12)
        assert {"final/pass_at_8", "final/delta_pass_at_8"} <= metrics.keys()
    assert runs[made.cells[1].id].data.params["method.clip_b.share"] == "0.02"
    with store.store(mlflow_uri, write=False) as client:
        of_one = runs[made.cells[1].id].info.run_id
        assert len(client.get_metric_history(of_one, "final/delta_avg_at_k")) == 1
    made.config.baseline = "ppo"
    publish.publish(made.config, made.cells)
    assert held(mlflow_uri)[2][made.cells[2].id].data.metrics["final/delta_avg_at_k"] == 0


def test_outcomes_of_a_summary_are_checked(tmp_path: Path, mlflow_uri: str) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri, "methods=[grpo,clip_b]", "seeds=[0]").send_all()
    asked = ["--experiment", "made", "--uri", mlflow_uri]
    whole = show_table(*asked)
    runs = held(mlflow_uri)[2]
    places = [Path(run.info.artifact_uri.removeprefix("file://")) / "outcome.json" for run in runs.values()]
    kept = [place.read_text() for place in places]
    for place in places:
        place.unlink()
    assert show_table(*asked) == whole
    cell = made.cells[1].id
    with store.store(mlflow_uri, write=True) as client:
        client.set_tag(runs[cell].info.run_id, "outcome", "another")
    assert show_table(*asked).endswith(f"the MLflow run of cell {cell} has no outcome.json among its artifacts\n")
    for place, text in zip(places, kept, strict=True):
        place.write_text(text)
    assert show_table(*asked) != whole, "it is not the outcome of which the run speaks"
    with store.store(mlflow_uri, write=True) as client:
        client.set_tag(runs[cell].info.run_id, "outcome", runs[cell].data.tags["outcome"])
    assert show_table(*asked) == whole


def test_as_mlflow_table_without_numbers() -> None:
    first = leaderboard_row("grpo", 2, Estimate(0.5, 0.25, 0.75), seeds_done=2, seeds_expected=2)
    new = leaderboard_row("new", 2, None, seeds_done=0, seeds_expected=2)
    table = json.loads(formats.as_mlflow_table([first, new]))
    by_name = dict(zip(table["columns"], table["data"][-1], strict=True))
    assert (by_name["method"], by_name["Avg@K"], by_name["seeds"]) == ("new", None, 0)


@pytest.mark.long
@pytest.mark.processes
def test_publish_to_a_server(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = smoke_matrix(tmp_path, server, "seeds=[0]", "methods=[grpo,clip_b]").send_all()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    rows = json_rows("--experiment", "made")
    assert [(row["method"], row["seeds_done"]) for row in rows] == [("base model", 1), ("grpo", 1), ("clip_b", 1)]
    assert sorted(held(server)[2]) == sorted(cell.id for cell in made.cells)
