"""Cells as processes of this machine: time limits, deaths at any moment of writing, and records that are damaged."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cells import write_cell
from commands import run_command
from launched import Watcher
from patience import HANG, wait_until
from places import REPOSITORY
from rich.console import Console

from harness import config, matrix
from harness.base.errors import Damaged, UserError
from harness.cells import lease
from harness.cells.log import MetricsLog
from harness.cells.state import State
from harness.commands import status
from harness.launch import launcher, local
from harness.launch.local import Local
from harness.launch.progress import LiveView
from harness.matrix import MARKER, Cell
from harness.tracking import sync

pytestmark = pytest.mark.processes


@pytest.mark.long
def test_server_of_cells_does_not_import_torchao(tmp_path: Path) -> None:
    """Which initializes CUDA. A cell can."""
    (tmp_path / "torchao").mkdir()
    (tmp_path / "torchao" / "__init__.py").write_text('__version__ = "9"\n')
    program = "import sys, harness.launch.imports; assert 'torchao' not in sys.modules; import torchao"
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{tmp_path}"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_forked_cell_ends_without_its_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which was interrupted before the process began, and has removed the folder of a measured cell."""
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: SimpleNamespace(is_alive=lambda: False))
    local.run_forked_cell(str(tmp_path / "gone"), ())
    assert not list(tmp_path.iterdir())


fork = multiprocessing.get_context("fork")
begun = fork.Event()  # set by the process of a cell; until then, the clock of time limits stands still


def sleep(folder: Path) -> None:
    begun.set()
    time.sleep(60)


def start_work_and_sleep(folder: Path) -> None:
    State("running", durable_step=3, seconds=7.0).write(folder)
    sleep(folder)


def finish_and_sleep(folder: Path) -> None:
    State("done").write(folder)
    sleep(folder)


def die_at_once(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def forked(work_of: Callable[[Cell], Callable[[Path], None]], patch: pytest.MonkeyPatch) -> None:
    """Have the processes of cells forked from this one, and do something else."""

    def start(cell: Cell, gpus: Sequence[str]) -> BaseProcess:
        process = fork.Process(target=work_of(cell), args=(cell.folder,))
        process.start()
        return process

    patch.setattr(local, "fork_cell", start)
    patch.setattr(local.forkserver, "ensure_running", lambda: None)


def ran(work: Callable[[Path], None], folder: Path, minutes: str, patch: pytest.MonkeyPatch) -> tuple[Cell, State]:
    settings = config.load_config("smoke", [f"results={folder}", f"hardware.timeout_minutes={minutes}"])
    cell, other = matrix.cells(settings)
    forked(lambda each: work if each is cell else print, patch)
    begun.clear()
    clock = SimpleNamespace(sleep=time.sleep, monotonic=lambda: begun.is_set() * time.monotonic())
    patch.setattr(launcher, "time", clock)
    watcher = Watcher()
    launcher.run_cells([cell, other], Local(1, 1), watcher, poll=0.05)
    assert {each.id for each in watcher.heard} == {cell.id, other.id}, "the others go on"
    return cell, State.read(cell.folder)


def test_run_cells_leaves_no_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each process two are: a matrix of 2,000 cells would come to its end at the system's limit."""
    cells = matrix.cells(config.load_config("smoke", [f"results={tmp_path}", "methods=[grpo]", "seeds=[0,1,2,3]"]))
    forked(lambda _: die_at_once, monkeypatch)
    numbers: list[int] = []
    watcher = Watcher()
    monkeypatch.setattr(watcher, "ended", lambda *_: numbers.append(len(os.listdir("/proc/self/fd"))))
    launcher.run_cells(cells, Local(1, 1), watcher, poll=0.05)
    assert len(numbers) == len(cells)
    # Another thread may have two open at the moment of a count; left open, they would be six more at the end.
    assert numbers[-1] - numbers[0] <= 2


@pytest.mark.parametrize("work", [sleep, start_work_and_sleep])
def test_run_cells_out_of_time(work: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    killed, mark_failed, states = fork.Event(), launcher.mark_failed, list[str]()

    def work_until_the_other_is_killed(folder: Path) -> None:
        with lease.hold(folder):
            State("running").write(folder)
            killed.wait(HANG)
            time.sleep(0.5)
            State("done").write(folder)

    def mark(folder: Path, *more: Any) -> None:
        mark_failed(folder, *more)
        states.append(State.read(folder).state)
        killed.set()

    monkeypatch.setattr(launcher, "mark_failed", mark)
    cell, _ = matrix.cells(config.load_config("smoke", [f"results={tmp_path}"]))
    first = fork.Process(target=work_until_the_other_is_killed, args=(cell.folder,))
    first.start()
    wait_until(lambda: lease.holder(cell.folder) is not None)
    _, state = ran(sleep, tmp_path, "0.005", monkeypatch)
    first.join()
    assert (states, state) == (["running", "done"], State("done"))


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


@pytest.mark.parametrize("earlier", [None, "the disk was full"])
def test_run_cells_with_a_cell_that_dies_at_once(
    earlier: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if earlier is not None:
        cell, _ = matrix.cells(config.load_config("smoke", [f"results={tmp_path}"]))
        write_cell(cell.folder, cell.spec, "failed", made=None, reason=earlier)
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


@pytest.mark.long
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


# Damaged while the matrix runs: such a cell fails and names its file, and the others continue


STEPS = [{"entropy/mean": 1.0}] * 2


def spoil(name: str, content: bytes) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        with lease.hold(folder):
            write_cell(folder, None, "running", STEPS, made=None)
            (folder / name).write_bytes(content)
            os._exit(1)

    return work


def say_what_no_encoding_holds(folder: Path) -> None:
    with lease.hold(folder):
        write_cell(folder, None, "failed", STEPS, made=None, reason="it said \udcff")
        os._exit(1)


def finish(folder: Path) -> None:
    with lease.hold(folder):
        write_cell(folder, None, "done", STEPS, made=None)


WORKS = {
    "state.json": spoil("state.json", b""),
    "metrics.jsonl": spoil("metrics.jsonl", b'{"step": 0\x00\xff\n'),
    "made.json": spoil("made.json", b"[]"),
    "mlflow.json": spoil("mlflow.json", b""),
    "config.yaml": spoil("config.yaml", b""),
    "reason": say_what_no_encoding_holds,
    "whole": finish,
}


@pytest.mark.parametrize("earlier", [None, "it ran out of memory"])
def test_run_cells_that_fail_before_the_launcher_looks(
    earlier: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason of their processes is kept, and replaces an earlier one."""
    cells = matrix.cells(config.load_config("smoke", [f"results={tmp_path}"]))
    for cell in cells if earlier else ():
        write_cell(cell.folder, cell.spec, "failed", reason=earlier)

    def start_and_wait(cell: Cell, gpus: Sequence[str]) -> BaseProcess:
        work = say_what_no_encoding_holds if cell is cells[0] else die_at_once
        process = fork.Process(target=work, args=(cell.folder,))
        process.start()
        process.join()
        return process

    forked(lambda _: die_at_once, monkeypatch)
    monkeypatch.setattr(local, "fork_cell", start_and_wait)
    launcher.run_cells(cells, Local(2, 1), Watcher(), poll=0.05)
    reasons = [State.read(cell.folder).reason for cell in cells]
    assert reasons == ["it said \\udcff", "its process ended by SIGKILL (out of memory?)"]


def test_run_cells_with_damaged_records(
    tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["methods=[grpo]", f"seeds={[*range(len(WORKS))]}", f"results={tmp_path}", f"tracking.uri={mlflow_uri}"]
    settings = config.load_config("smoke", overrides)
    cells = matrix.cells(settings)
    cell_of = dict(zip(WORKS, cells, strict=True))
    matrix.claim(settings)
    forked(lambda cell: [*WORKS.values()][cell.seed], monkeypatch)
    out = io.StringIO()
    with LiveView(Console(file=out, width=1000), cells, cells, mlflow_uri) as view:
        launcher.run_cells(cells, Local(2, 1), view, poll=0.05)
    for name in ("state.json", "metrics.jsonl"):
        now = cell_of[name].progress()
        assert now.state == "failed"
        assert str(now.reason).startswith(f"{cell_of[name].folder / name} is damaged: ")
        assert str(now.reason) in out.getvalue()
    assert str(cell_of["reason"].progress().reason).startswith("it said \\udcff")
    said = out.getvalue().splitlines()
    assert sum("failed  grpo seed " in line for line in said) + sum("done    " in line for line in said) == 7
    content = (settings.folder / MARKER).read_bytes()
    (settings.folder / MARKER).write_bytes(b"")
    with pytest.raises(Damaged, match=r"matrix\.json is damaged"):
        matrix.claim(settings)
    (settings.folder / MARKER).write_bytes(content)
    for name in ("mlflow.json", "reason", "whole"):
        sync.sync(cell_of[name].folder, mlflow_uri)
    monkeypatch.setattr(status, "config_of_arguments", lambda arguments: settings)
    assert status.call(None) == 0  # type: ignore[arg-type]
    assert "it said \\udcff" in capsys.readouterr().out
