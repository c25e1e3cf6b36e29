"""The tables of an MLflow store: complete or absent, whenever the process that makes them ends."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import time
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from full_disk import files_of_at_most
from mlflow.store.db.utils import _get_latest_schema_revision
from patience import HANG

from harness.base.errors import UserError
from harness.tracking import store

pytestmark = pytest.mark.slow


def sender(path: Path, experiment: str) -> BaseProcess:
    """Return a process that makes a store; it is forked, so that it need not load MLflow."""
    process = multiprocessing.get_context("fork").Process(target=send, args=(path, experiment))
    process.start()
    return process


def send(path: Path, experiment: str) -> None:
    with store.store(f"sqlite:///{path}", write=True) as client:
        client.create_run(client.create_experiment(experiment))


def experiments(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return sorted(name for (name,) in connection.execute("SELECT name FROM experiments"))


@pytest.mark.processes
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_store_whose_maker_was_ended(ending: signal.Signals, tmp_path: Path) -> None:
    """At a moment of the first half second in which the file is there, or is on the way to it."""
    path = tmp_path / "mlflow.db"
    process = sender(path, "first")
    while process.is_alive() and not any(file.stat().st_size for file in tmp_path.rglob("mlflow.db")):
        time.sleep(0.001)
    time.sleep(random.Random(int(ending)).random() * 0.5)
    if process.is_alive():
        os.kill(process.pid or 0, ending)
    process.join(HANG)
    assert not path.exists() or store.table_version(path) == _get_latest_schema_revision()
    send(path, "second")
    assert {"Default", "second"} <= {*experiments(path)}
    assert not list(tmp_path.glob(".mlflow.db*")), "what was half made is gone"


@pytest.mark.processes
def test_store_made_by_two_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    processes = [sender(path, name) for name in ("one", "other")]
    for process in processes:
        process.join(HANG)
        assert process.exitcode == 0
    assert experiments(path) == ["Default", "one", "other"]


def test_store_is_not_left_on_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with files_of_at_most(200_000), pytest.raises(UserError, match=r"the MLflow store at .* cannot be used: "):
        send(path, "first")
    assert [file.name for file in tmp_path.iterdir()] == ["mlflow.db.lock"]
    send(path, "second")
    assert experiments(path) == ["Default", "second"]


def test_store_of_another_mlflow(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    send(path, "kept")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'older'")
    before = path.read_bytes()
    store.prepare_tables.cache_clear()
    sentence = "another version of MLflow wrote the store: copy the file, then run `mlflow db upgrade sqlite"
    for opened in (store.store(f"sqlite:///{path}", write=write) for write in (True, False)):
        with pytest.raises(UserError, match=sentence), opened:
            pass
    assert path.read_bytes() == before
