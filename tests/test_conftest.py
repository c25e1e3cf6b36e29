"""A test without the marker `processes` cannot start processes."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys

import pytest

SENTENCE = r"test_conftest.py::\S+ starts a process; mark it with @pytest.mark.processes"


def test_python_is_not_started() -> None:
    with pytest.raises(pytest.fail.Exception, match=SENTENCE):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(pytest.fail.Exception, match=SENTENCE):
        subprocess.run("python3", check=True)


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_no_process_of_multiprocessing_is_started(method: str) -> None:
    process = multiprocessing.get_context(method).Process(target=int)  # type: ignore[attr-defined]
    with pytest.raises(pytest.fail.Exception, match=SENTENCE):
        process.start()


def test_tools_of_the_system_are() -> None:
    assert subprocess.run(["uname"], capture_output=True, check=True).stdout


@pytest.mark.processes
def test_a_marked_test_can_start_python() -> None:
    assert subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, check=True).stdout == b"42\n"
