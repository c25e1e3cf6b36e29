"""Ranks with the variables of torchrun meet, also on several machines; if one is lost, all end with a reason."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from companions import forkserver
from launched import check_lines, write_launched
from patience import HANG, wait_until
from places import RARELY_SEARCHING
from servers import free_port

from harness import ranks
from harness.base.errors import UserError
from harness.cells import lease
from harness.cells.log import MetricsLog
from harness.cells.state import Progress, State
from harness.launch import cell

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def torchrun(folder: Path) -> list[int]:
    """Run torchrun twice with a rank each, as on two machines; return the exit codes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": f"{RARELY_SEARCHING}:{Path.cwd()}"}
    with ExitStack() as agents:
        processes = []
        for node in range(2):
            arguments = [f"--node-rank={node}", "-m", "harness.launch.cell", str(folder)]
            process = agents.enter_context(subprocess.Popen([*command, *arguments], env=environment))
            agents.callback(process.terminate)
            processes.append(process)
        return [process.wait(HANG) for process in processes]


def forked(folder: Path) -> list[int | None]:
    """Run two ranks with the variables of torchrun; return the exit codes."""
    port = free_port()
    processes = [forkserver().Process(target=work_as_rank, args=(rank, port, folder)) for rank in range(2)]
    with running(processes[0]), running(processes[1]):
        for process in processes:
            process.join(HANG)
    return [process.exitcode for process in processes]


@pytest.mark.parametrize("start", [forked, pytest.param(torchrun, marks=pytest.mark.long)])
def test_divide_over_two_machines(start: Callable[[Path], list[int | None]], tmp_path: Path) -> None:
    settings = ["train.steps=2", "eval.every=0"]
    write_launched(tmp_path / "alone", *settings)
    cell.work(tmp_path / "alone")
    write_launched(tmp_path / "cell", *settings, "hardware.nodes=2")
    assert start(tmp_path / "cell") == [0, 0]
    state = State.read(tmp_path / "cell")
    assert (state.state, state.where) == ("done", [socket.gethostname()] * 2)
    check_lines(tmp_path / "alone", tmp_path / "cell", steps=2)
    assert lease.holder(tmp_path / "cell") is None


def work_as_rank(rank: int, port: int, folder: Path) -> None:
    """Run a rank of a cell on two machines."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    cell.main(str(folder))


def work_as_impatient_rank(rank: int, port: int, folder: Path) -> None:
    """Run a rank that soon counts a silent one as gone."""
    ranks.BEAT, ranks.SILENCE = 0.5, 3.0
    work_as_rank(rank, port, folder)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (signal.SIGKILL, "onnection"),  # closed by the peer; gloo has several sentences for it
        pytest.param(signal.SIGSTOP, "rank 1 of 2 gave no sign of life for 3 seconds", marks=pytest.mark.long),
    ],
)
def test_divide_with_a_rank_that_is_gone(sent: signal.Signals, reason: str, tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    write_launched(folder, "hardware.nodes=2", "train.steps=1000", "eval.every=0")
    port = free_port()
    context = forkserver()
    first, second = (context.Process(target=work_as_impatient_rank, args=(rank, port, folder)) for rank in range(2))
    with running(first), running(second):
        wait_until(lambda: len(MetricsLog(folder).read()) > 1)
        assert second.pid is not None
        os.kill(second.pid, sent)
        first.join(HANG)
        with contextlib.suppress(ProcessLookupError):
            os.kill(second.pid, signal.SIGCONT)
        second.join(HANG)
        assert all((first.exitcode, second.exitcode)), "both have ended, with an error"
    state = State.read(folder)
    assert state.state == "failed"
    assert reason in str(state.reason)


@contextmanager
def running(process: BaseProcess) -> Iterator[None]:
    """Start a process, and kill it at the end."""
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def test_divide_refuses_another_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(UserError, match=r"3 processes were started for this cell \(WORLD_SIZE\), but .* is 2"),
        ranks.process_group(2, "cpu"),
    ):
        pass


def test_main_refuses_a_cell_of_two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "write_log", lambda place: None)
    write_launched(tmp_path / "cell", "hardware.nodes=2")
    with pytest.raises(SystemExit, match=r"hardware.nodes is 2; allowed: 1"):
        cell.main(str(tmp_path / "cell"))
    assert Progress.read(tmp_path / "cell").state == "failed"
