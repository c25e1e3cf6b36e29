"""What `entrobench leaderboard` does with --format, --compare and --out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from harness import cli
from harness.commands import leaderboard
from harness.report.leaderboard import Entry
from harness.report.read import Result


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compare", "--format", "latex"], "--compare has no --format latex; allowed: table, md, csv, json"),
        (["--compare", "--format", "parquet", "--out", "x"], "--compare has no --format parquet"),
        (["--format", "parquet"], "--format parquet goes to a file, and --out names none"),
    ],
)
def test_formats_that_do_not_go_together_are_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["leaderboard", "demo", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_each_format_reaches_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right_JN = np.array([[1, 0] * 16, [0, 0] * 16])
    results = {seed: Result(["a", "b"], right_JN, (2.0, 1.0), [], {}) for seed in (0, 1)}
    kept = [Entry(method, "countdown", "countdown", "tiny", 2, results) for method in ("grpo", "clip_b")]
    monkeypatch.setattr(leaderboard, "cells", lambda config: [])
    monkeypatch.setattr(leaderboard, "asked", lambda config, matrix: ([], {"countdown": 4}))
    monkeypatch.setattr(leaderboard, "entries", lambda config, matrix: kept)
    begins = {
        ("--format", "latex"): "% tiny: means",
        ("--compare",): "countdown, tiny: Avg@K",
        ("--compare", "--format", "json"): "[",
    }
    for arguments, begin in begins.items():
        with pytest.raises(SystemExit) as ended:
            cli.main(["leaderboard", "demo", *arguments, "--out", str(tmp_path / "out")])
        assert ended.value.code == 0
        assert (tmp_path / "out").read_text().startswith(begin)
    with pytest.raises(SystemExit):
        cli.main(["leaderboard", "demo", "--format", "parquet", "--out", str(tmp_path / "out")])
    assert parquet.read_table(tmp_path / "out").num_rows == 2 * 2 * 2
