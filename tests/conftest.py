"""Fixtures for all tests, their order, and a guard against unmarked tests that start processes."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from itertools import chain, islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from servers import guarded_server, mlflow_server

from harness.base import matmul
from harness.tracking import store

if TYPE_CHECKING:
    from boards import MadeUpMatrix

pytest.register_assert_rewrite("studies")  # a finding that fails shows its numbers
PROGRAMS = Path(sys.executable).parent
# Python looks for unreachable cycles whenever the number of objects has grown by a quarter. While tests are collected,
# torch, transformers, MLflow and the tests themselves become millions of objects that all stay: a fifth of that time.
gc.disable()


def pytest_collection_finish() -> None:
    """Look for cycles among the objects of the tests only."""
    gc.freeze()
    gc.enable()


def pytest_configure() -> None:
    accept_interrupts()
    write_without_waiting()


def accept_interrupts() -> None:
    """Undo that this process ignores interrupts, as it does behind `nohup` or a shell's `&`. Processes of tests inherit
    that, and then no Ctrl-C that a test sends would reach them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def write_without_waiting() -> None:
    """Leave it to the system when files and SQLite's databases reach the disk, which no test cuts off from power.

    A commit of MLflow takes 12 ms otherwise, a made-up cell that is sent to it a quarter of a second.
    """
    connect = sqlite3.connect

    def connect_without_waiting(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        with contextlib.suppress(sqlite3.Error):  # it is locked, or no database; the caller will see
            connection.execute("PRAGMA synchronous = OFF")
        return connection

    patch = pytest.MonkeyPatch()
    patch.setattr(sqlite3, "connect", connect_without_waiting)
    patch.setattr(os, "fsync", lambda file: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `long` unless -m names them, and put the rest in the order for several workers."""
    if "long" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = in_parts(items, workers)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what this machine cannot run: each reason with its number of tests and files."""
    reports: list[Any] = terminalreporter.getreports("skipped")
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.section("not run here")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:4}  {reason}")


# The first test that needs the embedded model makes it, for 40 s in which another worker would wait for it. So of two
# parts, one begins with a file that needs it, and the other with a long file that does not.
FIRST = ("ranks/test_ranks.py", "verify/test_verify.py")


def in_parts(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return tests in equal parts, one for each worker, that begin with the files that start processes.

    Their tests are the longest: one that started last would keep a single worker busy while the others are idle. With
    `--dist worksteal`, a worker begins with its part, and then takes tests from the end of another's part, which are
    quick. Files stay whole, so that a fixture of a module is set up once.
    """
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    starting = [path for path in by_file if any(item.get_closest_marker("processes") for item in by_file[path])]
    starting.sort(key=lambda path: [not path.as_posix().endswith(name) for name in FIRST])
    quick = chain.from_iterable(by_file[path] for path in by_file if path not in starting)
    ordered: list[pytest.Item] = []
    for part in range(workers):
        ordered += chain.from_iterable(by_file[path] for path in starting[part::workers])
        end = len(items) * (part + 1) // workers
        ordered += islice(quick, max(0, end - len(ordered)))
    return [*ordered, *quick]


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs, made once, since making its tables takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with store.store(f"sqlite:///{path}", write=True) as client:
        client.search_experiments()
    return path


@pytest.fixture(scope="session")
def put_store(migrated: Path) -> Callable[[Path], None]:
    """A function that puts this database into a folder of results, where a run would make one."""

    def put(results: Path) -> None:
        results.mkdir(parents=True, exist_ok=True)
        shutil.copy(migrated, results / "mlflow.db")

    return put


@pytest.fixture(scope="session")
def sent_matrix(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> MadeUpMatrix:
    """A made-up matrix in a store of MLflow, for tests that only read both."""
    from boards import smoke_matrix  # takes a second, and the process that distributes the tests needs none of it

    folder = tmp_path_factory.mktemp("sent")
    return smoke_matrix(folder, f"sqlite:///{shutil.copy(migrated, folder / 'mlflow.db')}").send_all()


@pytest.fixture
def mlflow_uri(migrated: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated, tmp_path / 'mlflow.db')}"


@pytest.fixture(scope="session")
def server(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of MLflow. It takes seconds to start, so all tests share it, each with experiments of
    its own."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(migrated, folder / "mlflow.db")
    with mlflow_server(folder) as uri:
        yield uri


@pytest.fixture(scope="session")
def guarded(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server that requires a password."""
    folder = tmp_path_factory.mktemp("guarded")
    shutil.copy(migrated, folder / "mlflow.db")
    with guarded_server(folder) as uri:
        yield uri


@pytest.fixture(autouse=True)
def _slow_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every CPU be one that gains nothing in bfloat16: what a test expects does not depend on the machine."""
    monkeypatch.setattr(matmul, "bfloat16_speed", lambda: 1.0)


@pytest.fixture(autouse=True)
def _same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the folders that commands called here append, through all of which Python looks for packages."""
    monkeypatch.setattr(sys, "path", sys.path.copy())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Refuse new Python processes to a test without the marker `processes`, and to the fixtures set up for it.

    It does so in every run, so that `make test-fast`, which leaves out the marked tests, cannot come to start any.
    Small tools of the system, which libraries ask for the kind of machine, are no matter.
    """
    if item.get_closest_marker("processes"):
        return (yield)
    popen = subprocess.Popen.__init__

    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail(f"{item.nodeid} starts a process; mark it with @pytest.mark.processes")

    def tools_alone(self: subprocess.Popen[Any], args: Any, *rest: Any, **given: Any) -> None:
        program = Path(os.fsdecode(args if isinstance(args, str | bytes | os.PathLike) else args[0]))
        if program.parent == PROGRAMS or program.name.startswith("python"):
            refuse()
        popen(self, args, *rest, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", tools_alone)
        patch.setattr(BaseProcess, "start", refuse)
        patch.setattr(os, "fork", refuse)
        return (yield)
