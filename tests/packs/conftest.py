"""An honest pack, its records to be edited, and marks that stay out of the user's cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from answered import Forgery, answered_pack

from harness.packs.archive import unpacked
from harness.table import verified


@pytest.fixture(autouse=True)
def marks_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "marks_path", lambda digest: tmp_path / "marks" / f"{digest}.json")


@pytest.fixture(scope="package")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of two methods and two seeds, evaluated at the steps 0, 2 and 4."""
    return answered_pack(tmp_path_factory.mktemp("honest"), "train.steps=4", "eval.every=2")


@pytest.fixture
def forgery(honest: Path) -> Iterator[Forgery]:
    with unpacked(honest) as pack:
        yield Forgery.of(pack)
