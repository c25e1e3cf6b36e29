"""Ranks that torchrun started meet, also on several machines; if one is lost, all end with a reason."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cells import lines, write
from living import at_work, wait_until

from benchmarks.patience import HANG
from harness import cell
from harness.base.errors import UserError
from harness.cells import lease
from harness.cells.log import MetricsLog
from harness.cells.state import Progress, State
from harness.dist import ranks

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@contextmanager
def machines(folder: Path, *program: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start torchrun twice with a rank each, as on two machines."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    torchrun += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path.cwd())}
    agents = [
        subprocess.Popen([*torchrun, f"--node-rank={node}", *program, str(folder)], env=environment)
        for node in range(2)
    ]
    try:
        yield agents
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait()


def ranks_of(folder: Path) -> list[int]:
    """Return the processes of the cell that torchrun has started."""
    found = []
    for number in at_work(folder):
        with contextlib.suppress(OSError):
            found += [int(number)] if b"torch.distributed.run" not in command(number) else []
    return found


def command(process: str) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def test_two_machines_do_what_one_process_does(tmp_path: Path) -> None:
    settings = ["train.steps=2", "eval.every=0"]
    write(tmp_path / "alone", *settings)
    cell.work(tmp_path / "alone")
    write(tmp_path / "cell", *settings, "hardware.nodes=2")
    with machines(tmp_path / "cell", "-m", "harness.cell") as agents:
        assert [agent.wait(HANG) for agent in agents] == [0, 0]
    state = State.read(tmp_path / "cell")
    assert (state.state, state.where) == ("done", [socket.gethostname()] * 2)
    alone, found = lines(tmp_path / "alone"), lines(tmp_path / "cell")
    assert list(found) == list(alone) == [0, 1, 2]
    for step, record in alone.items():
        for name, value in record.items():
            assert found[step][name] == pytest.approx(value, rel=1e-3, abs=1e-5), (step, name)
    assert lease.holder(tmp_path / "cell") is None


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (signal.SIGKILL, "onnection"),  # closed by the peer, as gloo says in this way or that
        (signal.SIGSTOP, "rank 1 of 2 gave no sign of life for 4 seconds"),
    ],
)
def test_a_rank_that_is_gone_ends_all_with_a_reason(sent: signal.Signals, told: str, tmp_path: Path) -> None:
    folder, program = tmp_path / "cell", tmp_path / "impatient.py"
    program.write_text(
        "import sys; from harness import cell; from harness.dist import ranks\n"
        "ranks.BEAT, ranks.SILENCE = 0.5, 4.0; cell.main(sys.argv[1])"
    )
    write(folder, "hardware.nodes=2", "train.steps=1000", "eval.every=0")
    with machines(folder, str(program)) as agents:
        wait_until(lambda: len(MetricsLog(folder).read()) > 1)
        first = lease.holder(folder)
        assert first is not None
        [second] = [process for process in ranks_of(folder) if process != first.process]
        os.kill(second, sent)
        assert agents[0].wait(HANG) != 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(second, signal.SIGCONT)
        assert agents[1].wait(HANG) != 0
    assert not ranks_of(folder)
    state = State.read(folder)
    assert state.state == "failed"
    assert told in str(state.reason)


def test_another_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(UserError, match=r"3 processes were started for this cell \(WORLD_SIZE\), but .* is 2"),
        ranks.process_group(2, "cpu"),
    ):
        pass


def test_one_machine_cannot_start_a_cell_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "write_log", lambda place: None)
    write(tmp_path / "cell", "hardware.nodes=2")
    with pytest.raises(SystemExit, match=r"hardware.nodes is 2; allowed: 1"):
        cell.main(str(tmp_path / "cell"))
    assert Progress.read(tmp_path / "cell").state == "failed"
