"""Two minutes of the soak of benchmarks/soak.py, which takes an hour by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import soak


@pytest.mark.processes
@pytest.mark.slow
def test_a_matrix_whose_processes_are_killed_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Also while its base model is made, while problems are filtered by it, and while its MLflow store is made."""
    harm, (early, late) = soak.soak(tmp_path, cells=8, kills=12, minutes=5, seed=0)
    for moment, victim in soak.ONCE:
        assert harm.killed[f"{victim} at {moment}"] == 1
    assert late[0] <= early[0] + 2, "the runner holds more and more files open"
