"""The options --format, --compare and --out of `entrobench leaderboard`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from boards import Made, told
from pyarrow import parquet

from harness import cli


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compare", "--sort", "avg_at_k"], "--sort chooses in the table of scores, and --compare asks for another"),
        (["--format", "latex", "--sort", "hours"], "--sort chooses in the table of scores, and --format latex asks"),
        (["--before"], "leaderboard has no option '--before'"),
        (["--format", "csv", "--columns", "hours"], "--columns chooses what people see (--format table or md)"),
        (["--where", "seed=1", "--where", "seed=2"], "--where asks for seed=1 and seed=2, and no cell has both"),
    ],
)
def test_choices_that_would_do_nothing_are_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in told(capsys, "demo", *arguments)


@pytest.mark.slow
def test_each_format_reaches_its_file(tmp_path: Path, sent_matrix: Made, capsys: pytest.CaptureFixture[str]) -> None:
    out, asked = tmp_path / "out", ["--experiment", "made", "--uri", sent_matrix.config.tracking_uri]
    begins = {
        ("--format", "latex"): "% countdown-tiny: means",
        ("--compare",): "countdown, countdown-tiny: Avg@K",
        ("--compare", "--format", "json"): "[",
    }
    for arguments, begin in begins.items():
        assert told(capsys, *asked, *arguments, "--out", str(out)) == ""
        assert out.read_text().startswith(begin)
        assert out.read_text() == told(capsys, *asked, *arguments)
    assert told(capsys, *asked, "--format", "parquet", "--out", str(out)) == ""
    assert parquet.read_table(out).num_rows == (1 + 3) * 2 * 6
    told(capsys, *asked, "--format", "parquet", "--out", str(out), "--where", "method=clip_b")
    assert set(parquet.read_table(out).column("method").to_pylist()) == {"base model", "clip_b"}


@pytest.mark.slow
def test_several_experiments_stay_apart_in_each_format(
    tmp_path: Path, mlflow_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Made(tmp_path, mlflow_uri).end_all()
    Made(tmp_path, mlflow_uri, "train.lr=2e-3", name="größer").end_all()
    out, asked = tmp_path / "out", ["--experiment", "made,größer", "--uri", mlflow_uri]
    compared = json.loads(told(capsys, *asked, "--compare", "--format", "json"))
    assert [each["experiment"] for each in compared] == ["made"] * 8 + ["größer"] * 8
    lines = told(capsys, *asked, "--format", "latex").splitlines()
    assert [line for line in lines if line in ("% made", "% größer")] == ["% made", "% größer"]
    told(capsys, *asked, "--format", "parquet", "--out", str(out))
    assert parquet.read_table(out).column("experiment").to_pylist() == ["made"] * 48 + ["größer"] * 48
