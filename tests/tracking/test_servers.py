"""MLflow as a real server, with and without a password."""

from __future__ import annotations

import csv
import math
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import boards
import pytest
import requests
from cells import BEGAN, set_state
from matrices import STEPS, right_of, send_matrix, specs, write_done
from rich.console import Console
from servers import PASSWORD, between

from harness import cli
from harness import config as configs
from harness import runs as library
from harness.base import files
from harness.base.errors import UserError
from harness.cells.log import MetricsLog
from harness.cells.outcome import FILE as OUTCOME
from harness.cells.provenance import Made
from harness.cells.spec import FILE as SPEC
from harness.launch import progress
from harness.matrix import cells
from harness.tracking import evaluation, store, sync
from harness.tracking import reader as reading
from harness.tracking.evaluation import Evaluated
from harness.tracking.reader import FINAL, reader

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SMALL = ["eval.samples=4", "eval.k=2"]  # as made-up cells are evaluated


def test_a_server_holds_an_evaluation_once(tmp_path: Path, server: str) -> None:
    folder = tmp_path / "out" / "sums-1"
    made = Made("a" * 32, BEGAN, "0.1.0", None, None, {"sums": "1"}, {}, "A processor", "cpu")
    made.write(folder)
    for name in ("result", "settings"):
        files.write_json(folder / f"{name}.json", {"name": name})
    for part in (0, 1):
        files.write_lines(folder / "samples" / f"{part:04d}.jsonl", [{"part": part}])
    one = Evaluated("key-1", "tiny sums", folder, made, {"model": "tiny"}, {"task": "sums"}, {"eval/sums/avg": 0.25})

    def held() -> tuple[list[dict[str, Any]], list[list[str]]]:
        with store.store(server, write=False) as client:
            runs = client.search_runs([client.get_experiment_by_name("eval").experiment_id])
            listed = [client.list_artifacts(run.info.run_id, name) for run in runs for name in evaluation.FILES]
        return [run.to_dictionary() for run in runs], [[item.path for item in each] for each in listed]

    evaluation.sync_evaluation(one, server)
    before = held()
    evaluation.sync_evaluation(one, server)
    assert held() == before
    [run], [jsons, samples] = before
    assert run["data"]["metrics"] == {"eval/sums/avg": 0.25}
    assert run["info"]["status"] == "FINISHED"
    assert jsons == [f"evaluation/{name}.json" for name in ("made", "result", "settings")]
    assert samples == ["samples/0000.jsonl", "samples/0001.jsonl"]
    with store.store(server, write=False) as client:
        there = client.download_artifacts(run["info"]["run_id"], "samples/0001.jsonl", str(tmp_path))
    assert Path(there).read_bytes() == (folder / "samples" / "0001.jsonl").read_bytes()


class Caller:
    """Someone who calls commands on a matrix of one cell that is done."""

    def __init__(self, folder: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.settings, self.capsys = (
            [f"results={folder}", f"tracking.uri={uri}", "name=guarded", "methods=grpo", *SMALL],
            capsys,
        )
        [cell] = cells(configs.load_config("smoke", self.settings))
        write_done(cell.folder, cell.spec)

    def __call__(self, command: str, *arguments: str) -> tuple[int | str | None, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "smoke", *self.settings, *arguments])
        return ended.value.code, *self.capsys.readouterr()


@pytest.fixture
def call(tmp_path: Path, guarded: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.setattr(library, "console", Console(width=4000))
    monkeypatch.chdir(tmp_path)
    return Caller(tmp_path / "results", guarded, capsys)


def say_who(monkeypatch: pytest.MonkeyPatch, user: str | None, password: str | None) -> None:
    for name, value in (("USERNAME", user), ("PASSWORD", password)):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
        if value is not None:
            monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)


def nobody_reads(password: str, folder: Path) -> None:
    for path in folder.rglob("*"):
        assert not path.is_file() or password.encode() not in path.read_bytes(), path


def test_who_has_the_password_feeds_and_reads_and_a_guest_may_not(
    call: Caller, guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say_who(monkeypatch, "admin", PASSWORD)
    code, out, err = call("sync")
    assert (code, err) == (0, "")
    assert f"MLflow at {guarded} holds the records of 1 cell\n" in out
    code, table, err = call("leaderboard", "--format", "csv")
    assert (code, err) == (0, "")
    [_, row] = csv.DictReader(table.splitlines())  # after the base model
    right = right_of(level=0, seed=0, step=STEPS)
    assert (row["method"], float(row["avg_at_k.mean"])) == ("grpo", fmean(map(fmean, right)))
    assert PASSWORD not in out + table
    nobody_reads(PASSWORD, tmp_path)

    guest = {"username": "guest", "password": "pass-of-the-guest"}
    users = f"{guarded}/api/2.0/mlflow/users/create"
    requests.post(users, json=guest, auth=("admin", PASSWORD), timeout=60).raise_for_status()
    say_who(monkeypatch, "guest", "pass-of-the-guest")
    code, out, err = call("sync")
    assert (code, out) == (2, "")
    sentence = f"the MLflow store at {guarded} does not permit this to the user 'guest'; its administrator can"
    assert err == f"entrobench: {sentence}\n"


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        (None, None, "asks for a user and a password; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        ("admin", None, "asks for a user and a password; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        (
            "admin",
            "not-the-password",
            "knows no user 'admin' (MLFLOW_TRACKING_USERNAME) with the password in MLFLOW_TRACKING_PASSWORD",
        ),
    ],
)
def test_a_missing_login_gives_one_sentence(
    user: str | None,
    password: str | None,
    words: str,
    call: Caller,
    guarded: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    say_who(monkeypatch, user, password)
    for name in ("sync", "leaderboard"):
        assert call(name) == (2, "", f"entrobench: the MLflow store at {guarded} {words}\n")
    nobody_reads(password or PASSWORD, tmp_path)


def test_a_server_is_read_in_pages_and_without_deleted_runs(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_matrix(tmp_path, server, name="same", failed=[("clip_b", 1)])
    monkeypatch.setattr(reading, "PAGE", 3)
    with store.store(server, write=False) as client, reader(server) as source:
        known = source.experiments()
        assert known["same"] == client.get_experiment_by_name("same").experiment_id
        assert len(source.runs(known["same"])) == 4
        first, second = source.runs(known["same"])[:2]
        client.delete_run(second.id)
        client.log_metric(first.id, f"{FINAL}half", 0.5)
        remaining = source.runs(known["same"])
        assert [run.id for run in remaining].count(second.id) == 0
        assert len(remaining) == 3
        assert remaining[0].finals == {f"{FINAL}half": 0.5}
        done = [run.tags["status"] == "done" for run in remaining]
        assert [text is not None for text in source.texts(remaining, OUTCOME)] == done
        assert [text is not None for text in source.texts(remaining, SPEC)] == [True] * 3
        assert source.texts(remaining, "no such") == [None] * 3
        assert [bool(source.listed(run, "evals")) for run in remaining] == done
        for curves in source.curves(remaining, "entropy/mean".__eq__):
            assert list(curves) == ["entropy/mean"]
            assert [point.step for point in curves["entropy/mean"]] == sorted(p.step for p in curves["entropy/mean"])


def test_cells_are_sent_side_by_side_and_counted(
    server: str,
    tmp_path: Path,
    mlflow_uri: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = boards.smoke_matrix(tmp_path, mlflow_uri, name="together").send_all()
    monkeypatch.setattr(progress, "QUIET_COUNT_SECONDS", 0.0)
    made.config.tracking.uri = server
    assert library.sync_matrix(made.config, made.cells) == (6, 0)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("feeding MLflow with cells: ")]
    assert [line.partition(",")[0].rpartition(": ")[2] for line in lines] == [f"{done} of 6" for done in range(1, 7)]
    names = {line.rpartition(", last ")[2] for line in lines}
    assert names == {cell.folder.name for cell in made.cells}
    with store.store(server, write=False) as client:
        experiment = client.get_experiment_by_name("together").experiment_id
        sent = client.search_runs([experiment])
        assert sorted(run.data.tags["cell"] for run in sent) == sorted(cell.id for cell in made.cells)
        for run in sent:
            assert [point.step for point in client.get_metric_history(run.info.run_id, "entropy/mean")] == [0, 1]
            assert len(run.inputs.dataset_inputs) == 1
    assert library.sync_matrix(made.config, made.cells) == (6, 0)
    with store.store(server, write=False) as client:
        assert len(client.search_runs([experiment])) == 6


def test_a_new_cell_takes_few_requests(server: str, tmp_path: Path) -> None:
    """MLflow's client alone would request the run and its models again for each listing of files."""
    folders = []
    for spec in specs("few", ["grpo"], ["countdown"], ["tiny"], [0, 1]):
        folders.append(tmp_path / spec.id)
        write_done(folders[-1], spec)
    sync.sync(folders[0], server)  # which also creates the experiment
    sent_files = ["config.yaml", OUTCOME, *(folders[1] / "evals").iterdir(), *(folders[1] / "samples").glob("*")]
    with between(server) as (uri, proxy):
        with store.store(uri, write=True):
            connected = proxy.calls
        sync.sync(folders[1], uri)
    # Experiment, search, run, the tag of the lines to come, points, data set, two listings, status, and last the
    # parameters with the tags.
    assert proxy.calls - connected == 10 + len(sent_files)


def test_points_that_are_not_finite_reach_a_server_as_they_reach_a_file(
    server: str, tmp_path: Path, mlflow_uri: str
) -> None:
    [spec] = specs("infinite", ["grpo"], ["countdown"], ["tiny"], [0])
    write_done(tmp_path / "cell", spec)
    MetricsLog(tmp_path / "cell").append(STEPS + 1, 1.0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.1})
    set_state(tmp_path / "cell", "done", durable_step=STEPS + 1)
    histories = []
    for uri in (server, mlflow_uri):
        sync.sync(tmp_path / "cell", uri)
        with store.store(uri, write=False) as client:
            [run] = client.search_runs([client.get_experiment_by_name("infinite").experiment_id])
            points = [client.get_metric_history(run.info.run_id, key) for key in run.data.metrics]
        histories.append(sorted((p.key, p.step, p.timestamp, repr(p.value)) for metric in points for p in metric))
    assert {point[0] for point in histories[0]} >= {"a", "b", "c", "d", "entropy/mean"}
    assert histories[0] == histories[1]


def seconds_if(part: str, seconds: float, path: str) -> float:
    return seconds if part in path else 0.0


def test_a_file_that_cannot_be_read_is_reported_with_its_reason(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "4")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    send_matrix(tmp_path, server, name="unread", methods=["grpo"], seeds=[0])

    def read(uri: str) -> None:
        with reader(uri) as source:
            [run] = source.runs(source.experiments()["unread"])
            source.texts([run], OUTCOME)

    with between(server) as (uri, proxy):
        proxy.seconds_per_byte = partial(seconds_if, "/mlflow-artifacts/artifacts/", 60.0)
        with pytest.raises(UserError) as refused:
            read(uri)
    prefix, _, reason = str(refused.value).partition(" cannot be used: ")
    assert prefix == f"the MLflow store at {uri}"
    assert reason
