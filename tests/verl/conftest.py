"""Tests of the trainer mode on the real verl, on a CPU: `make test-verl` makes them an environment and runs them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

# The wheel of verl brings a namespace `tests` but none that this folder would hide.
NEEDED = ("verl.trainer", "transfer_queue", "tensordict", "hydra")


def importable(name: str) -> bool:
    try:
        return find_spec(name.partition(".")[0]) is not None and find_spec(name) is not None
    except ModuleNotFoundError:
        return False


missing = [name for name in NEEDED if not importable(name)]
collect_ignore_glob = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and missing:
            item.add_marker(pytest.mark.skip(reason="needs the package verl; make test-verl runs it"))
