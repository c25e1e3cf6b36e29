"""A test without the marker `processes` cannot start processes; tests marked `long` run only when -m names them."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import REPOSITORY

SENTENCE = r"test_conftest.py::\S+ starts a process; mark it with @pytest.mark.processes"


def test_python_is_not_started() -> None:
    with pytest.raises(pytest.fail.Exception, match=SENTENCE):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(pytest.fail.Exception, match=SENTENCE):
        subprocess.run("python3", check=True)


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_multiprocessing_is_not_started(method: str) -> None:
    process = multiprocessing.get_context(method).Process(target=int)  # type: ignore[attr-defined]
    with pytest.raises(pytest.fail.Exception, match=SENTENCE):
        process.start()


def test_tools_of_the_system_are() -> None:
    assert subprocess.run(["uname"], capture_output=True, check=True).stdout


@pytest.mark.processes
def test_python_is_started_by_a_marked_test() -> None:
    assert subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, check=True).stdout == b"42\n"


@dataclass(frozen=True)
class Item:
    """A collected test, as far as the hook reads it."""

    name: str
    path: Path
    marks: tuple[str, ...] = ()

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks


@pytest.fixture
def ours(request: pytest.FixtureRequest) -> Any:
    """The module conftest.py, as pytest has loaded it."""
    plugins = request.config.pluginmanager.get_plugins()
    [found] = [each for each in plugins if getattr(each, "__file__", None) == str(REPOSITORY / "tests" / "conftest.py")]
    return found


@pytest.mark.parametrize(
    ("markexpr", "order"),
    [("", ["process", "plain", "quick"]), ("long or slow", ["process", "long", "plain", "quick"])],
)
def test_modifyitems_by_marks(markexpr: str, order: list[str], ours: Any) -> None:
    items = [
        Item("quick", Path("test_a.py")),
        Item("process", Path("test_b.py"), ("processes",)),
        Item("long", Path("test_b.py"), ("long",)),
        Item("plain", Path("test_b.py")),
    ]
    deselected: list[Item] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    config = SimpleNamespace(option=SimpleNamespace(markexpr=markexpr), hook=hook)
    ours.pytest_collection_modifyitems(config, items)
    assert [item.name for item in items] == order
    assert [item.name for item in deselected] == [name for name in ["long"] if name not in order]
