"""Leases of cells: one process at a time works on a cell, and a process with an expired lease cannot write."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest
from known import known
from patience import HANG, patient, wait_until

from harness.base import files
from harness.base.errors import Taken
from harness.cells import lease
from harness.cells.log import MetricsLog
from harness.cells.state import State

fork = multiprocessing.get_context("fork")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "PATIENCE", patient(0.4))
    monkeypatch.setattr(lease, "BEAT", 0.1)
    monkeypatch.setattr(lease, "POLL", 0.02)


def hold(folder: Path, ready: Event) -> None:
    with lease.hold(folder):
        ready.set()
        time.sleep(60)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[BaseProcess]:
    """Another process, which works on the cell."""
    ready = fork.Event()
    process = fork.Process(target=hold, args=(tmp_path, ready))
    process.start()
    assert ready.wait(HANG)
    yield process
    if process.is_alive():
        process.kill()
    process.join()


def writes(folder: Path) -> None:
    """All ways in which a cell's process writes."""
    State("running").write(folder)
    MetricsLog(folder).append(1, 0.0, {})
    with files.atomic_folder(folder / "model") as place:
        (place / "weights").write_text("")


def test_hold(tmp_path: Path) -> None:
    assert lease.holder(tmp_path) is None
    for number in (1, 2):
        with lease.hold(tmp_path) as mine:
            assert mine == lease.Lease(tmp_path, number)
            assert lease.holder(tmp_path) == lease.Owner.me()
            with lease.hold(tmp_path, wait=0) as second:
                assert second is None
            writes(tmp_path)
        assert lease.holder(tmp_path) is None
    assert [path.name for path in (tmp_path / "leases").iterdir()] == ["2"]
    assert {path.name for path in tmp_path.iterdir()} == {"leases", "state.json", "metrics.jsonl", "model"}


def test_lease_has_the_usual_permissions(tmp_path: Path) -> None:
    """Else no other user of a shared folder could read who holds a cell, or continue it."""
    usual = os.umask(0o022)
    try:
        mine = known(lease.take(tmp_path))
    finally:
        os.umask(usual)
    assert mine.directory.stat().st_mode & 0o777 == 0o755


@pytest.mark.processes
def test_holder_killed_on_this_machine(tmp_path: Path, other: BaseProcess) -> None:
    assert known(lease.holder(tmp_path)).process == other.pid
    with lease.hold(tmp_path, wait=0) as mine:
        assert mine is None
    other.kill()
    wait_until(lambda: lease.holder(tmp_path) is None)  # the kernel has ended it; its exit code is still unread
    with lease.hold(tmp_path, wait=0) as mine:
        assert known(mine).number == 2


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "machine", lambda: "another machine")


@pytest.mark.processes
@pytest.mark.usefixtures("impatient")
def test_holder_killed_on_another_machine(tmp_path: Path, other: BaseProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch)
    monkeypatch.setattr(lease.time, "time", lambda: 1e9)  # a clock that is wrong has no say
    time.sleep(1.5 * lease.PATIENCE)
    assert lease.holder(tmp_path) is not None, "it lives"
    other.kill()
    other.join()
    assert lease.holder(tmp_path) is not None, "so soon nobody knows"
    with lease.hold(tmp_path, wait=30) as mine:
        assert mine is not None


@pytest.mark.processes
@pytest.mark.usefixtures("impatient")
def test_suspended_holder_writes_nothing(tmp_path: Path, other: BaseProcess) -> None:
    pid = known(other.pid)
    os.kill(pid, signal.SIGSTOP)
    with lease.hold(tmp_path, wait=30) as mine:
        assert mine is not None
        State("done").write(tmp_path)
        os.kill(pid, signal.SIGCONT)
        other.join(HANG)
        assert other.exitcode == 1
        assert lease.holder(tmp_path) == lease.Owner.me()
    assert State.read(tmp_path) == State("done")


def test_fenced_in_the_middle_of_writing(tmp_path: Path) -> None:
    """The old owner is in the middle of a file, of a line and of a folder, and before each of them."""
    old = known(lease.take(tmp_path))
    with lease.fenced(old):
        State("running").write(tmp_path)
        MetricsLog(tmp_path).append(1, 0.0, {})
        half, folder = files.atomic(tmp_path / "state.json"), files.atomic_folder(tmp_path / "model")
        half.__enter__().write(b'{"late": 1}')
        place = folder.__enter__()
        with open(old.directory / ".." / ".." / "metrics.jsonl", "a") as line:
            with lease.fenced(known(lease.next_after(tmp_path, old))):
                MetricsLog(tmp_path).truncate(1)
            line.write("late")
        files.lease_dirs[tmp_path] = old.directory
        for context in (half, folder):
            with pytest.raises(Taken, match="another process took over"):
                context.__exit__(None, None, None)
        assert not place.exists()
        for write in (
            lambda: State("failed").write(tmp_path),
            lambda: MetricsLog(tmp_path).append(2, 0.0, {}),
            lambda: files.atomic_folder(tmp_path / "model").__enter__(),
        ):
            with pytest.raises(Taken):
                write()
    assert State.read(tmp_path) == State("running")
    assert [each["step"] for each in MetricsLog(tmp_path).read()] == [1]
    assert not (tmp_path / "model").exists()


def taker(folder: Path, meeting: Barrier, won: Path) -> None:
    meeting.wait(HANG)
    try:
        with lease.hold(folder, wait=0) as mine:
            if mine is not None:
                (won / str(os.getpid())).touch()
            meeting.wait(HANG)  # so that nobody comes when the first has gone
    except Exception:
        meeting.abort()  # the others would wait in vain
        raise


@pytest.mark.processes
def test_hold_of_many_at_once(tmp_path: Path) -> None:
    for turn in range(5):
        cell, won = tmp_path / str(turn), tmp_path / f"won-{turn}"
        won.mkdir()
        meeting = fork.Barrier(8)
        processes = [fork.Process(target=taker, args=(cell, meeting, won)) for _ in range(8)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(HANG)
        assert [process.exitcode for process in processes] == [0] * 8
        assert len(list(won.iterdir())) == 1


def test_next_after_an_old_lease(tmp_path: Path) -> None:
    first = known(lease.take(tmp_path))
    with lease.hold(tmp_path, wait=0) as none:
        assert none is None
    second = lease.next_after(tmp_path, first)
    third = known(lease.next_after(tmp_path, second))
    assert lease.next_after(tmp_path, first) is None, "of number 2, whose place is empty again"
    assert lease.newest_lease(tmp_path) == third


def test_briefly_held_cell_can_be_removed(tmp_path: Path) -> None:
    with lease.briefly(tmp_path / "cell") as ours:
        assert ours
        shutil.rmtree(tmp_path / "cell")
    assert not (tmp_path / "cell").exists()


def test_holder_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner was killed on another machine, whose numbers of processes say nothing here."""
    lease.take(tmp_path)
    elsewhere(monkeypatch)
    os.utime(tmp_path / "leases" / "1" / "owner", (1e9, 1e9))
    assert lease.holder(tmp_path) is None
    with lease.hold(tmp_path, wait=0) as mine:
        assert mine is not None


@pytest.mark.usefixtures("impatient")
def test_holder_that_died_with_a_clock_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner was killed on a machine whose clock was an hour ahead."""
    lease.take(tmp_path)
    elsewhere(monkeypatch)
    ahead = time.time() + 3600
    os.utime(tmp_path / "leases" / "1" / "owner", (ahead, ahead))
    assert lease.holder(tmp_path) is not None, "so soon nobody knows"
    began = time.monotonic()
    with lease.hold(tmp_path, wait=30) as mine:
        assert mine is not None
        assert time.monotonic() - began < patient(10)


@pytest.mark.processes
@pytest.mark.usefixtures("impatient")
def test_holder_with_a_clock_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, utime = fork.Event(), os.utime
    with monkeypatch.context() as patch:
        patch.setattr(lease.os, "utime", lambda path: utime(path, (time.time() + 3600,) * 2))
        process = fork.Process(target=hold, args=(tmp_path, ready))
        process.start()
    assert ready.wait(HANG)
    elsewhere(monkeypatch)
    with lease.hold(tmp_path, wait=5 * lease.PATIENCE) as mine:
        assert mine is None
    process.kill()
    process.join()
