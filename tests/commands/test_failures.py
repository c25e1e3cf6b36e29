"""Failures of commands that measure in their own process."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from commands import run_command

from harness.base.errors import CellFailure
from harness.theory import explain, theory


@pytest.mark.parametrize("arguments", [["dynamics", "smoke"], ["explain", "grpo", "smoke"]])
def test_command_that_fails(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise CellFailure("3 of 4 answers (75.0%) could not be verified")

    monkeypatch.setattr(theory, "measure", fail)
    monkeypatch.setattr(explain, "explain", fail)
    said = run_command(*arguments, f"results={tmp_path}", code=1)
    assert said == "entrobench: failed: 3 of 4 answers (75.0%) could not be verified\n"
