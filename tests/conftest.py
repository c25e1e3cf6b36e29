"""For all tests: an MLflow database without runs, and no new process for a test that does not say that it needs one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from harness.record import store

QUICK = ("nvidia-smi",)  # it only says which GPUs are here


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs; making its tables takes seconds, so once is enough."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with store.store(f"sqlite:///{path}", write=True) as client:
        client.search_experiments()
    return path


@pytest.fixture
def mlflow_uri(migrated: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated, tmp_path / 'mlflow.db')}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Refuses new processes to a test without the marker `processes`, and to the fixtures that are set up for it.

    It is so in every run, and so `make test-fast`, which leaves out the marked tests, starts no process.
    """
    if item.get_closest_marker("processes"):
        return (yield)
    popen = subprocess.Popen.__init__

    def refuse(*_: object, **__: object) -> None:
        pytest.fail(f"{item.nodeid} starts a process; mark it with @pytest.mark.processes", pytrace=True)

    def quick_alone(self: subprocess.Popen[Any], args: Any, *rest: Any, **given: Any) -> None:
        if isinstance(args, list) and args[0] in QUICK:
            popen(self, args, *rest, **given)
        else:
            refuse()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", quick_alone)
        patch.setattr(BaseProcess, "start", refuse)
        patch.setattr(os, "fork", refuse)
        return (yield)
