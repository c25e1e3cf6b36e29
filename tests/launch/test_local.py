"""Cells as processes of this machine: time limits and deaths at any moment of writing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from commands import run_command
from patience import HANG
from places import REPOSITORY

from harness import config, matrix
from harness.base.errors import UserError
from harness.cells import lease
from harness.cells.log import MetricsLog
from harness.cells.state import State
from harness.launch import launcher, local
from harness.launch.local import Local
from harness.matrix import Cell

pytestmark = pytest.mark.processes


class Silent(launcher.Watcher):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def ended(self, cell: Cell, reason: str | None) -> None:
        self.heard.append(cell.id)


def test_server_of_cells_does_not_import_torchao(tmp_path: Path) -> None:
    """Which initializes CUDA. A cell can."""
    (tmp_path / "torchao").mkdir()
    (tmp_path / "torchao" / "__init__.py").write_text('__version__ = "9"\n')
    program = "import sys, harness.launch.imports; assert 'torchao' not in sys.modules; import torchao"
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{tmp_path}"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def sleep(folder: Path) -> None:
    time.sleep(60)


def start_work_and_sleep(folder: Path) -> None:
    State("running", durable_step=3, seconds=7.0).write(folder)
    time.sleep(60)


def finish_and_sleep(folder: Path) -> None:
    State("done").write(folder)
    time.sleep(60)


def die_at_once(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def forked(work_of: Callable[[Cell], Callable[[Path], None]], patch: pytest.MonkeyPatch) -> None:
    """Have the processes of cells forked from this one, and do something else."""

    def start(cell: Cell, gpus: Sequence[str]) -> BaseProcess:
        process = multiprocessing.get_context("fork").Process(target=work_of(cell), args=(cell.folder,))
        process.start()
        return process

    patch.setattr(local, "fork_cell", start)
    patch.setattr(local.forkserver, "ensure_running", lambda: None)


def ran(work: Callable[[Path], None], folder: Path, minutes: str, patch: pytest.MonkeyPatch) -> tuple[Cell, State]:
    settings = config.load_config("smoke", [f"results={folder}", f"hardware.timeout_minutes={minutes}"])
    cell, other = matrix.cells(settings)
    forked(lambda each: work if each is cell else print, patch)
    watcher = Silent()
    launcher.run_cells([cell, other], Local(1, 1), watcher, poll=0.05)
    assert {*watcher.heard} == {cell.id, other.id}, "the others go on"
    return cell, State.read(cell.folder)


def test_run_cells_leaves_no_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each process two are: a matrix of 2,000 cells would come to its end at the system's limit."""
    cells = matrix.cells(config.load_config("smoke", [f"results={tmp_path}", "methods=[grpo]", "seeds=[0,1,2,3]"]))
    forked(lambda _: die_at_once, monkeypatch)
    numbers: list[int] = []
    watcher = Silent()
    monkeypatch.setattr(watcher, "ended", lambda *_: numbers.append(len(os.listdir("/proc/self/fd"))))
    launcher.run_cells(cells, Local(1, 1), watcher, poll=0.05)
    assert len(numbers) == len(cells)
    # Another thread may have two open at the moment of a count; left open, they would be six more at the end.
    assert numbers[-1] - numbers[0] <= 2


@pytest.mark.parametrize("work", [sleep, start_work_and_sleep])
def test_run_cells_ends_a_cell_that_takes_too_long(
    work: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, state = ran(work, tmp_path, "0.005", monkeypatch)
    assert (state.state, state.reason) == ("failed", "it took longer than hardware.timeout_minutes (0.005)")
    assert state.durable_step == (3 if work is start_work_and_sleep else -1)
    assert cell.progress().state == "failed"


@pytest.mark.parametrize("minutes", ["0.005", "null"])
def test_run_cells_with_a_lingering_process(minutes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the run wait for ever for a process that a thread keeps alive."""
    monkeypatch.setattr(launcher, "LINGERING", 0.5)
    _, state = ran(finish_and_sleep, tmp_path, minutes, monkeypatch)
    assert state == State("done")


def test_run_cells_with_a_cell_of_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process works and holds the lease; the other run's process, which waits for that, takes too long."""

    def work_for_a_second(folder: Path) -> None:
        with lease.hold(folder):
            State("running").write(folder)
            time.sleep(1.5)
            State("done").write(folder)

    cell, _ = matrix.cells(config.load_config("smoke", [f"results={tmp_path}"]))
    first = multiprocessing.get_context("fork").Process(target=work_for_a_second, args=(cell.folder,))
    first.start()
    while not lease.holder(cell.folder):
        time.sleep(0.01)
    _, state = ran(sleep, tmp_path, "0.005", monkeypatch)
    first.join()
    assert state == State("done")


def test_fork_cell_with_a_dying_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths: list[BaseException] = []

    def start(process: BaseProcess) -> None:
        if deaths:
            raise deaths.pop()

    monkeypatch.setattr(BaseProcess, "start", start)
    monkeypatch.setattr(local.forkserver, "ensure_running", lambda: None)
    monkeypatch.setattr(local, "PAUSE", 0.0)
    cell, _ = matrix.cells(config.load_config("smoke", [f"results={tmp_path}"]))
    deaths += [EOFError(), ConnectionRefusedError()]
    assert local.fork_cell(cell, ()).daemon
    deaths += [EOFError()] * local.STARTS
    with pytest.raises(UserError, match=r"^the process that imports torch for all cells died 3 times"):
        local.fork_cell(cell, ())


def test_run_cells_with_a_cell_that_dies_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, state = ran(die_at_once, tmp_path, "null", monkeypatch)
    assert (state.state, state.reason) == ("failed", "its process ended by SIGKILL (out of memory?)")


@pytest.mark.parametrize("losses", [1, 2])
def test_run_cells_with_a_lost_server(losses: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(folder: Path) -> None:
        with open(folder / "lives", "a") as lives:
            lives.write("x")
        if (folder / "lives").stat().st_size <= losses:
            os._exit(launcher.LOST)
        State("done").write(folder)

    cell, state = ran(work, tmp_path, "null", monkeypatch)
    expected = State("failed", "the process that it was forked from has ended") if losses > 1 else State("done")
    assert state == expected
    assert (cell.folder / "lives").read_text() == "xx"


def test_run_cells_with_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is on a disk that is full, where what is mended would be noted; the next run goes on."""
    cell, _ = matrix.cells(config.load_config("smoke", [f"results={tmp_path}"]))
    cell.folder.mkdir(parents=True)
    cell.spec.write(cell.folder)
    (cell.folder / "log.txt").symlink_to("/dev/full")
    (cell.folder / "state.json").touch()
    _, state = ran(lambda folder: State("done").write(folder), tmp_path, "null", monkeypatch)
    remedy = "free some space, or change its permissions"
    why = f"{cell.folder / 'log.txt'} cannot be written: No space left on device; {remedy}"
    assert (state.state, state.reason) == ("failed", why)
    (cell.folder / "log.txt").unlink()
    _, state = ran(lambda folder: State("done").write(folder), tmp_path, "null", monkeypatch)
    assert state == State("done")


@pytest.mark.slow
def test_two_runs_on_one_folder(tmp_path: Path, put_store: Callable[[Path], None]) -> None:
    """Each waits for what the other runs, and both end with the same table."""
    put_store(tmp_path)
    settings = ["methods=[grpo,clip_b]", "seeds=[0]", "train.steps=2", "train.prompts=8", "train.group=8"]
    settings += ["eval.problems=4", "eval.samples=4", "eval.k=2", f"results={tmp_path}"]
    command = [sys.executable, "-m", "entrobench", "run", "smoke", *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as other:
        printed = [run_command("run", "smoke", *settings), other.communicate(timeout=HANG)[0]]
    tables = [output.partition("countdown, countdown-tiny")[2] for output in printed]
    assert other.returncode == 0
    cells = matrix.cells(config.load_config("smoke", settings))
    for cell in cells:
        assert State.read(cell.folder).state == "done"
        assert [line["step"] for line in MetricsLog(cell.folder).read()] == [0, 1, 2]
        assert cell.label.partition(" ")[0] in tables[0]
    assert len(list((tmp_path / "smoke").glob("*/config.yaml"))) == len(cells), "no attempt was set aside"
    assert tables[0].partition("curves:")[0] == tables[1].partition("curves:")[0]


def test_environment_wait_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert launcher.environment(2)["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert launcher.environment(2)["OMP_WAIT_POLICY"] == "active"
