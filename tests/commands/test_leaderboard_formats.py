from __future__ import annotations

import json
from pathlib import Path

import pytest
from boards import MadeUpMatrix, show_table, smoke_matrix
from commands import refusal
from pyarrow import parquet


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compare", "--format", "latex"], "--compare has no --format latex; allowed: table, md, csv, json"),
        (["--compare", "--format", "parquet", "--out", "x"], "--compare has no --format parquet"),
        (["--format", "parquet", "--out", "x", "--baseline", "ppo"], "--baseline is what scores are compared with"),
        (["--format", "parquet"], "--format parquet goes to a file, and --out names none"),
        (["--compare", "--sort", "avg_at_k"], "--sort chooses in the table of scores, and --compare asks for another"),
        (["--format", "latex", "--sort", "hours"], "--sort chooses in the table of scores, and --format latex asks"),
        (["--before"], "leaderboard has no option '--before'"),
        (["--format", "csv", "--columns", "hours"], "--columns chooses what people see (--format table or md)"),
        (["--columns", ""], "--columns is ''; allowed: "),
        (["--sort", ""], "--sort is ''; allowed: "),
        (["--where", "seed=1", "--where", "seed=2"], "--where asks for seed=1 and seed=2, and no cell has both"),
    ],
)
def test_leaderboard_refuses_formats_and_choices_without_effect(arguments: list[str], words: str) -> None:
    assert words in refusal("leaderboard", "demo", *arguments)


@pytest.mark.slow
def test_leaderboard_out(tmp_path: Path, sent_matrix: MadeUpMatrix) -> None:
    out, asked = tmp_path / "out", ["--experiment", "made", "--uri", sent_matrix.config.tracking_uri]
    begins = {
        ("--format", "latex"): "% countdown-tiny: means",
        ("--compare",): "countdown, countdown-tiny: Avg@K",
        ("--compare", "--format", "json"): "[",
    }
    for arguments, begin in begins.items():
        assert show_table(*asked, *arguments, "--out", str(out)) == ""
        assert out.read_text().startswith(begin)
        assert out.read_text() == show_table(*asked, *arguments)
    assert show_table(*asked, "--format", "parquet", "--out", str(out)) == ""
    assert parquet.read_table(out).num_rows == (1 + 3) * 2 * 6
    show_table(*asked, "--format", "parquet", "--out", str(out), "--where", "method=clip_b")
    assert set(parquet.read_table(out).column("method").to_pylist()) == {"base model", "clip_b"}


@pytest.mark.slow
def test_leaderboard_formats_of_several_experiments(tmp_path: Path, mlflow_uri: str) -> None:
    smoke_matrix(tmp_path, mlflow_uri).send_all()
    smoke_matrix(tmp_path, mlflow_uri, "train.lr=2e-3", name="größer").send_all()
    out, asked = tmp_path / "out", ["--experiment", "made,größer", "--uri", mlflow_uri]
    compared = json.loads(show_table(*asked, "--compare", "--format", "json"))
    assert [each["experiment"] for each in compared] == ["made"] * 8 + ["größer"] * 8
    lines = show_table(*asked, "--format", "latex").splitlines()
    assert [line for line in lines if line in ("% made", "% größer")] == ["% made", "% größer"]
    show_table(*asked, "--format", "parquet", "--out", str(out))
    assert parquet.read_table(out).column("experiment").to_pylist() == ["made"] * 48 + ["größer"] * 48
