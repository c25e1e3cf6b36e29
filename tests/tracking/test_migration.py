"""The tables of an MLflow store: complete or absent, whenever the process that makes them ends."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import mlflow
import pytest
import sqlalchemy
from alembic import command
from alembic.script import ScriptDirectory
from mlflow.store.db.utils import _get_alembic_config
from mlflow.store.tracking.dbmodels.initial_models import Base
from places import REPOSITORY

from benchmarks.patience import HANG
from harness.base.errors import UserError
from harness.tracking import migration, store

pytestmark = pytest.mark.slow

SENDER = """
import sys
from harness.tracking.store import store
import mlflow
from mlflow.store.db import utils
print("ready", flush=True)
with store(sys.argv[1], write=True) as client:
    client.create_run(client.create_experiment(sys.argv[2])).info.run_id
print("sent", flush=True)
"""


def sender(path: Path, experiment: str) -> subprocess.Popen[str]:
    """Return a process that is about to make a store."""
    process = subprocess.Popen(
        [sys.executable, "-c", SENDER, f"sqlite:///{path}", experiment],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def send(path: Path, experiment: str) -> None:
    with store.store(f"sqlite:///{path}", write=True) as client:
        client.create_run(client.create_experiment(experiment))


def experiments(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return sorted(name for (name,) in connection.execute("SELECT name FROM experiments"))


@pytest.mark.processes
@pytest.mark.parametrize(("ending", "times"), [(signal.SIGKILL, 2), (signal.SIGINT, 1), (signal.SIGTERM, 1)])
def test_a_store_whose_maker_is_ended_is_made_by_the_next_one(
    ending: signal.Signals, times: int, tmp_path: Path
) -> None:
    """At moments of the first second in which the file is there, and on the way to it."""
    dice = random.Random(int(ending))
    for number in range(times):
        path = tmp_path / f"{number}.db"
        process = sender(path, "first")
        while process.poll() is None and not any(file.stat().st_size for file in tmp_path.rglob(f"{number}.db")):
            time.sleep(0.001)
        time.sleep(dice.random() * 0.5)
        process.send_signal(ending)
        process.communicate(timeout=HANG)
        assert not path.exists() or migration.database_content(path).version == migration.newest()
        send(path, "second")
        assert {"Default", "second"} <= {*experiments(path)}
        assert not list(tmp_path.glob(f".{number}.db*")), "what was half made is gone"


@pytest.mark.processes
def test_two_that_make_a_store_at_once_both_send(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    processes = [sender(path, name) for name in ("one", "other")]
    for process in processes:
        said, errors = process.communicate(timeout=HANG)
        assert (process.returncode, said) == (0, "sent\n"), errors
    assert experiments(path) == ["Default", "one", "other"]


def test_a_disk_that_is_full_leaves_no_store(tmp_path: Path) -> None:
    path, (soft, hard) = tmp_path / "mlflow.db", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(UserError, match=r"the MLflow store at .* cannot be used: "):
            send(path, "first")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in tmp_path.iterdir()] == ["mlflow.db.lock"]
    send(path, "second")
    assert experiments(path) == ["Default", "second"]


def spoil(path: Path) -> None:
    """Leave a store as MLflow does that is killed in the middle of a change of a table."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE _alembic_tmp_experiments (a INTEGER)")


def at_revision(path: Path, back: int, *, run: bool) -> None:
    """Make a store as a version of MLflow made it some changes of its tables ago."""
    script = ScriptDirectory(str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
    older = [each.revision for each in script.walk_revisions()][back]
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    settings = _get_alembic_config(f"sqlite:///{path}")
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        command.upgrade(settings, older)
    engine.dispose()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO experiments (experiment_id, name, lifecycle_stage) VALUES (7, 'old', 'active')")
        if run:
            database.execute(
                "INSERT INTO runs (run_uuid, name, experiment_id, lifecycle_stage, status, start_time, user_id, "
                "artifact_uri) VALUES ('a1', 'kept', 7, 'active', 'FINISHED', 5, 'u', 'file:///a')"
            )
            database.execute(
                "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES ('m', 0.5, 6, 'a1', 1, 0)"
            )


BACK = 25  # changes of the tables, among which are some that copy whole tables


def test_a_store_that_was_left_half_made_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlflow.db"
    at_revision(path, BACK, run=False)
    spoil(path)
    send(path, "new")
    assert capsys.readouterr().err == f"{path} was left incomplete and has no runs; it is created again\n"
    assert experiments(path) == ["Default", "new"]


def test_an_old_store_is_brought_to_the_present_version_with_all_that_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    at_revision(path, BACK, run=True)
    assert migration.database_content(path).version != migration.newest()
    send(path, "new")
    assert {"old", "new"} <= {*experiments(path)}
    with store.store(f"sqlite:///{path}", write=False) as client:
        run = client.get_run("a1")
        [point] = client.get_metric_history("a1", "m")
    assert (run.info.run_name, run.info.status) == ("kept", "FINISHED")
    assert (point.value, point.step, point.timestamp) == (0.5, 1, 6)


def test_an_old_store_that_cannot_be_brought_to_this_version_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    at_revision(path, BACK, run=True)
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"it was not changed: move it away, and `entrobench sync` fills a new one"):
        send(path, "new")
    assert path.read_bytes() == before
    with pytest.raises(UserError, match=r"lacks tables of this version"), store.store(f"sqlite:///{path}", write=False):
        pass
    assert path.read_bytes() == before


@pytest.mark.processes
def test_an_old_store_outlives_the_process_that_changes_it(tmp_path: Path) -> None:
    dice = random.Random(1)
    for number in range(2):
        path = tmp_path / f"{number}.db"
        at_revision(path, BACK, run=True)
        process = sender(path, "first")
        while process.poll() is None and not any(tmp_path.glob(f".{number}.db.*/*")):
            time.sleep(0.001)
        time.sleep(dice.random() * 0.5)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=HANG)
        assert "old" in experiments(path)
        send(path, "second")
        assert {"old", "second"} <= {*experiments(path)}
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT value FROM metrics WHERE run_uuid = 'a1'").fetchall() == [(0.5,)]
