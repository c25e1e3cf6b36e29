"""Results in unusual places, and machines with unusual set-ups: they work, or a message says what is missing."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from commands import Ended, end_of
from filelock import Timeout
from patience import HANG
from places import REPOSITORY

from harness import config, matrix
from harness.base import files, locks
from harness.base.errors import UserError
from harness.cells.log import MetricsLog
from harness.cells.state import State
from harness.launch import cell as process
from harness.launch.launcher import prepare_cell
from harness.rollout import models
from harness.tracking import sync
from harness.tracking.store import store

SHORT = ["train.steps=2", "train.prompts=4", "train.group=4", "eval.problems=2", "eval.samples=2", "eval.k=2"]
SHORT += ["methods=[grpo]", "checkpoint.every=1", "checkpoint.save_model=false"]
ODD = "Ergebnisse für 方法 🙂 & 'co'"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, put_store: Callable[[Path], None]) -> Path:
    """Return results of a matrix that ran in a folder with an odd name, without a home and in a plain locale."""
    results = tmp_path_factory.mktemp("places") / ODD
    put_store(results)
    plain = {name: value for name, value in os.environ.items() if name != "HOME" and not name.startswith("LC_")}
    cache = str(models.default_cache())  # made before, wherever that is
    command = [sys.executable, "-m", "entrobench", "run", "smoke", *SHORT, f"results={results}"]
    ran = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=plain | {"LC_ALL": "C", "LANG": "C", "ENTROBENCH_CACHE": cache},
        capture_output=True,
        timeout=HANG,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return results


def end_in(results: Path, command: str) -> Ended:
    return end_of(command, "smoke", *SHORT, f"results={results}")


@pytest.mark.processes
@pytest.mark.long
def test_results_in_a_folder_with_an_odd_name(odd: Path) -> None:
    for command in ("status", "plan", "sync", "leaderboard", "report"):
        code, _, err = end_in(odd, command)
        assert (code, err) == (0, ""), command
    assert [path.name for path in odd.glob("smoke/report/*.html")] == ["report.html"]


@pytest.fixture
def read_only(odd: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a copy of the results on a file system where nothing can be written."""
    place = Path(shutil.copytree(odd, tmp_path / "copy"))
    mount = ["mount", "--bind", str(place), str(place)]
    again = ["mount", "-o", "remount,ro,bind", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a folder")
    try:
        subprocess.run(again, check=True)
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.processes
@pytest.mark.long
def test_results_on_a_read_only_file_system(read_only: Path) -> None:
    for command in ("status", "plan", "leaderboard"):
        code, out, err = end_in(read_only, command)
        assert (code, err) == (0, ""), command
        assert "grpo" in out
    for command in ("sync", "report", "run"):
        code, _, err = end_in(read_only, command)
        assert code == 2
        assert err.startswith("entrobench: ")
        assert "Read-only file system" in err or "readonly database" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_lock_without_flock(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locks.lock(tmp_path / "mlflow.lock"):
        assert (tmp_path / "mlflow.lock.held").exists()
        with pytest.raises(Timeout):
            locks.lock(tmp_path / "mlflow.lock").acquire(timeout=0)
    with locks.lock(tmp_path / "mlflow.lock"):
        pass
    monkeypatch.undo()
    with locks.lock(tmp_path / "mlflow.lock"), pytest.raises(Timeout):
        locks.lock(tmp_path / "mlflow.lock").acquire(timeout=0)


def test_default_cache_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> NoReturn:
        raise KeyError(user)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("ENTROBENCH_CACHE", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UserError, match="this user has no home folder, where models are kept; set ENTROBENCH_CACHE"):
        files.default_cache()


def test_default_cache_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("ENTROBENCH_CACHE", str(file))
    with pytest.raises(UserError, match=f"^ENTROBENCH_CACHE is '{file}', which is a file; it must name a folder$"):
        files.default_cache()


@pytest.mark.slow
def test_cell_with_a_clock_going_backwards(tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "write_log", lambda place: None)
    [cell] = matrix.cells(config.load_config("smoke", [*SHORT, f"results={tmp_path / 'results'}"]))
    now = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    prepare_cell(cell)
    process.main(str(cell.folder), wait=0)
    monkeypatch.undo()
    assert State.read(cell.folder).state == "done"
    assert 0 < State.read(cell.folder).seconds < 600
    times = [line["time"] for line in MetricsLog(cell.folder).read()]
    assert times == sorted(times, reverse=True)
    for _ in range(2):
        sync.sync(cell.folder, mlflow_uri)
    with store(mlflow_uri, write=False) as client:
        [run] = client.search_runs([client.get_experiment_by_name("smoke").experiment_id])
        points = client.get_metric_history(run.info.run_id, "entropy/mean")
    assert sorted(point.step for point in points) == [1, 2]
