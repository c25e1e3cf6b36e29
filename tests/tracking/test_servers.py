"""MLflow as a real server, with and without a password."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import boards
import pytest
import requests
from commands import Ended, end_of
from matrices import STEPS, right_of, send_matrix, specs, write_done
from rich.console import Console
from servers import PASSWORD, between

from harness import config as configs
from harness import runs as library
from harness.base.errors import UserError
from harness.cells.evaluations import OUTCOME
from harness.cells.spec import FILE as SPEC
from harness.matrix import cells
from harness.tracking import reader as reading
from harness.tracking import store, sync
from harness.tracking.reader import FINAL, reader

pytestmark = [pytest.mark.processes, pytest.mark.long]

SMALL = ["eval.samples=4", "eval.k=2"]  # as made-up cells are evaluated


@pytest.fixture
def call(tmp_path: Path, guarded: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """A function that calls commands on a matrix of one cell that is done."""
    monkeypatch.setattr(library, "console", Console(width=4000))
    monkeypatch.chdir(tmp_path)
    settings = [f"results={tmp_path / 'results'}", f"tracking.uri={guarded}", "name=guarded", "methods=grpo", *SMALL]
    [cell] = cells(configs.load_config("smoke", settings))
    write_done(cell.folder, cell.spec)
    return lambda command, *arguments: end_of(command, "smoke", *settings, *arguments)


def say_who(monkeypatch: pytest.MonkeyPatch, user: str | None, password: str | None) -> None:
    for name, value in (("USERNAME", user), ("PASSWORD", password)):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
        if value is not None:
            monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)


def nobody_reads(password: str, folder: Path) -> None:
    for path in folder.rglob("*"):
        assert not path.is_file() or password.encode() not in path.read_bytes(), path


def test_sync_to_a_guarded_server(
    call: Callable[..., Ended], guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
def test_sync_without_a_login(
    user: str | None,
    password: str | None,
    words: str,
    call: Callable[..., Ended],
    guarded: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    say_who(monkeypatch, user, password)
    for name in ("sync", "leaderboard"):
        assert call(name) == (2, "", f"entrobench: the MLflow store at {guarded} {words}\n")
    nobody_reads(password or PASSWORD, tmp_path)


def test_reader_of_a_server(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send_matrix(tmp_path, server, name="same", failed=[("clip_b", 1)], summed_up=False)
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


def test_sync_matrix_to_a_server(server: str, tmp_path: Path, mlflow_uri: str) -> None:
    made = boards.smoke_matrix(tmp_path, mlflow_uri, name="together").send_all()
    made.config.tracking.uri = server
    assert library.sync_matrix(made.config, made.cells) == (6, 0)
    with store.store(server, write=False) as client:
        experiment = client.get_experiment_by_name("together").experiment_id
        sent = client.search_runs([experiment])
        assert sorted(run.data.tags["cell"] for run in sent) == sorted(cell.id for cell in made.cells)
        for run in sent:
            assert [point.step for point in client.get_metric_history(run.info.run_id, "entropy/mean")] == [0, 1]
    assert library.sync_matrix(made.config, made.cells) == (6, 0)
    with store.store(server, write=False) as client:
        assert len(client.search_runs([experiment])) == 6


def test_sync_takes_few_requests(server: str, tmp_path: Path) -> None:
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
    # Experiment, search, run, the tag of the lines to come, points, two listings, status, and last the parameters with
    # the tags.
    assert proxy.calls - connected == 9 + len(sent_files)


def test_texts_of_a_file_that_cannot_be_read(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "4")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    send_matrix(tmp_path, server, name="unread", methods=["grpo"], seeds=[0], summed_up=False)

    def read(uri: str) -> None:
        with reader(uri) as source:
            [run] = source.runs(source.experiments()["unread"])
            source.texts([run], OUTCOME)

    with between(server) as (uri, proxy):
        proxy.seconds_per_byte = lambda path: 60.0 if "/mlflow-artifacts/artifacts/" in path else 0.0
        with pytest.raises(UserError) as refused:
            read(uri)
    prefix, _, reason = str(refused.value).partition(" cannot be used: ")
    assert prefix == f"the MLflow store at {uri}"
    assert reason
