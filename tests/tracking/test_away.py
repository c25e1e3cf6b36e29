"""MLflow that is down, slow, unresponsive, locked or killed while a matrix runs: no waiting, and no loss."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import mlflow  # noqa: F401  loaded before any clock runs
import pytest
from cells import set_state
from matrices import STEPS, specs, write_done
from patience import HANG, patient, wait_until
from places import REPOSITORY
from servers import Between, between, free_port, mlflow_server

from harness import cli, config, matrix
from harness.base.errors import UserError
from harness.tracking import feeder, store, sync
from harness.tracking.feeder import Feeder

pytestmark = [pytest.mark.processes, pytest.mark.long]

AT_ONCE = 2.0  # seconds that a busy machine may take for what does not wait for calls of three seconds and more


class Server:
    """A server of MLflow that can be killed and started again, behind something that may keep calls from it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.running = folder, free_port(), ExitStack()

    def start(self) -> str:
        return self.running.enter_context(mlflow_server(self.folder, port=self.port))

    def kill(self) -> None:
        self.running.close()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(migrated, folder / "mlflow.db")
    server = Server(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def server(real: Server) -> Iterator[tuple[str, Between]]:
    with between(f"http://127.0.0.1:{real.port}") as proxy:
        yield proxy


def running_cell(folder: Path, name: str) -> Path:
    """Return a cell that is done except for its state."""
    [spec] = specs(name, ["grpo"], ["countdown"], ["tiny"], [0])
    write_done(folder, spec)
    set_state(folder, "running", durable_step=1)
    return folder


def fed(uri: str, folder: Path, until: Callable[[], bool] | None = None) -> list[str]:
    """Feed a cell at each checkpoint and at its end, as a run does; return the messages."""
    said: list[str] = []
    feeding = Feeder(uri, said.append)
    for step in range(1, STEPS + 1):
        began = time.perf_counter()
        set_state(folder, "done" if step == STEPS else "running", durable_step=step)
        feeding.feed(folder)
        assert time.perf_counter() - began < patient(AT_ONCE)
        time.sleep(0.3)
    if until is not None:
        wait_until(until)
    feeding.close()
    if until is not None and feeding.thread is not None:
        feeding.thread.join(HANG)
    return said


def check_whole(uri: str, name: str, last: int = STEPS) -> None:
    """Each step of the one cell once."""
    with store.store(uri, write=False) as client:
        [run] = client.search_runs([client.get_experiment_by_name(name).experiment_id], "tags.cell LIKE '%'")
        for metric in ("entropy/mean", "reward/mean", "responses/length"):
            points = client.get_metric_history(run.info.run_id, metric)
            assert sorted(point.step for point in points) == list(range(1, last + 1))
        assert run.info.status == "FINISHED"


@pytest.fixture
def deaf(server: tuple[str, Between]) -> Iterator[str]:
    uri, proxy = server
    proxy.heard.clear()
    proxy.silent.set()
    yield uri
    proxy.silent.clear()


def test_feeder_with_a_store_that_never_answers(deaf: str, server: tuple[str, Between], tmp_path: Path) -> None:
    folder = running_cell(tmp_path / "cell", "deaf")
    assert fed(deaf, folder) == []
    assert server[1].heard.is_set()


def test_interrupt_with_a_store_that_never_answers(deaf: str, server: tuple[str, Between], tmp_path: Path) -> None:
    folder = running_cell(tmp_path / "cell", "deaf")
    program = (
        "import sys, pathlib; from harness.tracking import feeder, sync; "
        "folder, uri = pathlib.Path(sys.argv[1]), sys.argv[2]; "
        "feeder.Feeder(uri, print).feed(folder); sync.sync(folder, uri)"
    )
    server[1].heard.clear()
    process = subprocess.Popen([sys.executable, "-c", program, str(folder), deaf], cwd=REPOSITORY, stderr=-1)
    assert server[1].heard.wait(HANG)
    process.send_signal(signal.SIGINT)
    began = time.perf_counter()
    assert b"KeyboardInterrupt" in process.communicate(timeout=HANG)[1]
    assert time.perf_counter() - began < patient(5)
    assert process.returncode == -signal.SIGINT


def test_feeder_with_a_slow_store(server: tuple[str, Between], tmp_path: Path) -> None:
    uri, proxy = server
    folder = running_cell(tmp_path / "cell", "slow")
    proxy.late = 3.0
    assert fed(uri, folder) == []
    proxy.late = 0.0
    sync.sync(folder, uri)
    check_whole(uri, "slow")


def test_feeder_with_a_store_that_refuses_calls(
    server: tuple[str, Between], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, proxy = server
    monkeypatch.setattr(feeder, "PAUSE", 0.2)
    folder = running_cell(tmp_path / "cell", "refuses")
    proxy.refuses = lambda number: number % 5 < 2  # so that one more try does not help
    said = fed(uri, folder, lambda: proxy.calls > 11)  # by then it has failed twice
    proxy.refuses = lambda number: False
    assert len(said) == 1, "it is said once"
    assert said[0].startswith(f"MLflow is not fed: the MLflow store at {uri} cannot be used: ")
    assert said[0].endswith("The records are kept; `entrobench sync` feeds it later.")
    sync.sync(folder, uri)
    check_whole(uri, "refuses")


def test_feeder_with_a_locked_database(tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **given: connect(path, **{"timeout": 0.05, **given}))
    monkeypatch.setattr(feeder, "PAUSE", 0.1)
    folder = running_cell(tmp_path / "cell", "locked")
    said: list[str] = []
    feeding = Feeder(mlflow_uri, said.append)
    with connect(tmp_path / "mlflow.db") as holder:
        holder.execute("BEGIN EXCLUSIVE")
        set_state(folder, "done", durable_step=STEPS)
        feeding.feed(folder)
        wait_until(lambda: bool(said))
        time.sleep(0.5)  # in which it fails again
    assert len(said) == 1
    assert said[0].startswith(f"MLflow is not fed: the MLflow store at {mlflow_uri} cannot be used: ")
    wait_until(lambda: not feeding.queue and (folder / "mlflow.json").exists())  # asked for again, without a word
    feeding.close()
    sync.sync(folder, mlflow_uri)
    monkeypatch.undo()
    check_whole(mlflow_uri, "locked")


def test_feeder_with_a_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder, "PAUSE", 0.0)
    said: list[str] = []
    feeding = Feeder(f"sqlite:///{tmp_path}/mlflow.db", said.append)
    feeding.feed_now(tmp_path / "gone")
    error = f"[Errno 2] No such file or directory: '{tmp_path}/gone/mlflow.lock'"
    assert said == [f"MLflow is not fed: {error}. The records are kept; `entrobench sync` feeds it later."]
    assert [*feeding.queue] == [tmp_path / "gone"]


def test_run_with_a_store_that_is_down(
    real: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real matrix, whose cells train meanwhile as ever; the address with its password is in the environment."""
    nowhere, there = (f"me:open-sesame@127.0.0.1:{port}" for port in (free_port(), real.port))
    settings = ["methods=[grpo]", "name=down", "train.steps=3", "train.prompts=4", "train.group=4"]
    settings += ["eval.problems=2", "eval.samples=2", "eval.k=2", "checkpoint.every=1", "checkpoint.save_model=false"]
    settings += [f"results={tmp_path / 'results'}"]
    said = ""

    def call(command: str, address: str) -> tuple[object, str, str]:
        nonlocal said
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{address}")
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "smoke", *settings])
        out, err = capfd.readouterr()
        said += out + err
        return ended.value.code, out, err

    code, out, err = call("run", nowhere)
    assert code == 2
    assert out.count("MLflow is not fed: ") <= 1, "a short run has ended before the store was found to be away"
    masked = f"{nowhere.rpartition('@')[2]}/***"
    assert err.startswith(f"entrobench: the MLflow store at http://{masked} cannot be used: ")
    [cell] = matrix.cells(config.load_config("smoke", settings))
    assert cell.progress().state == "done"
    assert call("sync", nowhere)[0] == 2
    before = {*real.folder.rglob("outcome.json")}
    assert [call(command, there)[0] for command in ("sync", "run")] == [0, 0]
    check_whole(f"http://127.0.0.1:{real.port}", "down", last=3)
    [outcome] = {*real.folder.rglob("outcome.json")} - before
    sent = outcome.read_bytes()
    outcome.write_bytes(sent.replace(b"1", b"2"))
    assert call("sync", there)[0] == 0
    assert outcome.read_bytes() == sent, "what was changed on the server is sent again"
    assert f"http://{masked} cannot be used" in call("doctor", nowhere)[1].replace("\n", "")
    assert "open-sesame" not in said
    written = [path for folder in (tmp_path, real.folder) for path in folder.rglob("*") if path.is_file()]
    assert {"log.txt", "config.yaml", "mlflow.db", "outcome.json", "leaderboard.md"} <= {each.name for each in written}
    for path in written:  # MLflow writes the values of runs into its database unchanged
        assert b"open-sesame" not in path.read_bytes(), path


def test_sync_with_a_server_that_is_killed(
    real: Server, server: tuple[str, Between], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, proxy = server
    monkeypatch.setattr(sync, "METRICS_PER_CALL", 10)
    folder = running_cell(tmp_path / "cell", "killed")
    sync.sync(folder, uri)
    set_state(folder, "done", durable_step=STEPS)
    proxy.calls = 0

    def kills(number: int) -> bool:
        if number == 8:
            real.kill()
        return False

    proxy.refuses = kills
    with pytest.raises(UserError, match="cannot be used"):
        sync.sync(folder, uri)
    assert proxy.calls >= 8
    real.start()
    proxy.refuses = lambda number: False
    sync.sync(folder, uri)
    check_whole(uri, "killed")
