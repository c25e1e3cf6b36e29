"""Problem sets of invented rows in a separate cache, for tests that run without the real sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.rollout import models
from tasks.data import cache, sets
from tasks.data.clean import Counts
from tasks.data.sources import Located

ROWS = {
    r"What is $\frac{1}{2}$ of 12, more or less?": "6",
    "How many sides, has a triangle (3)?": "3",
    "Ein Würfel hat 12 Kanten. Wie viele Ecken?": "8",
    "What is 2+2 * 1?": "4",
}


def prepare(name: str, split: str = "test", rows: dict[str, str] = ROWS) -> None:
    """Write a set as `entrobench data prepare` does, in the cache of ENTROBENCH_CACHE."""
    cache.write_problem_set(name, {split: rows}, Counts(), Located("invented", {"invented": 1}, dict))


def prepare_in(cache: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Use a separate cache with these sets, and with the models that exist already."""
    made = models.default_cache() / "models"
    monkeypatch.setenv("ENTROBENCH_CACHE", str(cache))
    cache.mkdir()
    made.mkdir(parents=True, exist_ok=True)
    (cache / "models").symlink_to(made)
    for name in names:
        prepare(name, "train" if name == sets.TRAINED else "test")
