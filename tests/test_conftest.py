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
def test_multiprocessing_is_not_started(method: str) -> None:
    process = multiprocessing.get_context(method).Process(target=int)  # type: ignore[attr-defined]
    with pytest.raises(pytest.fail.Exception, match=SENTENCE):
        process.start()
