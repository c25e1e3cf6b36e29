from __future__ import annotations

from pathlib import Path

import pytest
from commands import Commands


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path, monkeypatch, capfd)
