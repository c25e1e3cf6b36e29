"""Short versions of the soak of tests/helpers/soak.py, which takes an hour in full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import soak


@pytest.mark.processes
@pytest.mark.long
def test_soak_with_one_kill(tmp_path: Path, put_store: Callable[[Path], None]) -> None:
    """The kill comes while problems are filtered; tests/tracking/test_store.py kills the maker of the MLflow store."""
    harm, _ = soak.soak(tmp_path, cells=2, kills=1, minutes=5, seed=0, first=[("filter", "all")], put_store=put_store)
    assert harm.killed == {"all at filter": 1}


@pytest.mark.processes
@pytest.mark.long
def test_soak_with_random_kills(tmp_path: Path) -> None:
    """The first kill comes while its base model is made."""
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
