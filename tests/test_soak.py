"""A short version of the soak of tests/helpers/soak.py, which takes an hour in full."""

from __future__ import annotations

from pathlib import Path

import pytest
import soak


@pytest.mark.processes
@pytest.mark.long
def test_soak_with_random_kills(tmp_path: Path) -> None:
    """The first kills come while its base model is made, while problems are filtered, and while its store is made."""
    harm, looks = soak.soak(tmp_path, cells=8, kills=12, minutes=5, seed=0)
    assert harm.killed.total() > len(soak.ONCE)
    assert soak.kept_open(looks) == set()


def test_kept_open() -> None:
    """Ignores short-lived processes, and processes from before the first cell."""
    always, database = {"3 pipe:[1]"}, "9 /results/mlflow.db"
    looks = [soak.Look(done, {*always, database, f"5 pipe:[{done}]"}, 0) for done in range(9)]
    assert soak.kept_open(looks) == set()
    leaking = [soak.Look(look.done, look.files | ({"7 pipe:[77]"} if look.done >= 2 else set()), 0) for look in looks]
    assert soak.kept_open(leaking) == {"7 pipe:[77]"}
    again = [soak.Look(look.done, look.files | ({"7 pipe:[77]"} if look.done % 3 else set()), 0) for look in looks]
    assert soak.kept_open(again) == set()
