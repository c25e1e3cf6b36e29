"""Published curves: the shipped files, their diagnosis, and their place on the page next to a user's own runs."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from matrices import STEPS, metrics_of, send_matrix

from harness.diagnose.course import course_of
from harness.diagnose.readers import read_run
from harness.page import figures
from harness.page.content import content_of_experiment
from harness.page.figures import CURVES, INDEX, reported_curves
from harness.page.page import render_page, sections_of

with open(CURVES / INDEX, newline="") as index:
    RUNS = {run["file"]: run for run in csv.DictReader(index)}


def test_index_names_every_file_with_source_and_license() -> None:
    assert set(RUNS) == {path.name for path in CURVES.iterdir()} - {INDEX}
    for run in RUNS.values():
        assert list(run) == ["file", "model", "task", "method", "source", "license", "about"]
        assert all(run.values())
        assert run["source"].startswith("https://github.com/")


@pytest.mark.parametrize(
    ("file", "verdict", "sentence"),
    [
        (
            "rasbt-grpo.csv",
            "collapsed and exploded",
            "collapse by step 13, explosion by step 248; it ends at 2.12 of its start",
        ),
        ("rasbt-grpo-two-updates.csv", "fell", "it ends at 0.17 of its start, below 0.4"),
        ("rasbt-grpo-kl.csv", "exploded", "its last value is 9.40 times its first, above 3"),
    ],
)
def test_verdicts_on_the_shipped_curves(file: str, verdict: str, sentence: str) -> None:
    course = course_of(read_run(CURVES / file))
    assert (course.verdict, course.sentence) == (verdict, sentence)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B-Base", "models/qwen3-0.6b-base", "Qwen/Qwen3-0.6B-Base@main"])
def test_reported_curves_of_a_model(model: str) -> None:
    curves = reported_curves(model)
    assert list(curves) == [
        f"{method}, MATH (reported)" for method in ("GRPO", "GRPO, 2 updates", "GRPO, 2 updates, KL")
    ]
    entropy = curves["GRPO, MATH (reported)"]
    assert list(entropy) == list(range(1, 501))
    assert [entropy[step] for step in (1, 10, 500)] == [1.329654, 0.126266, 2.614523]
    assert reported_curves(model.replace("0.6", "1.7")) == {}


@pytest.mark.slow
def test_page_shows_reported_curves_apart_from_its_own(migrated: Path, tmp_path: Path) -> None:
    uri = f"sqlite:///{shutil.copy(migrated, tmp_path / 'mlflow.db')}"
    send_matrix(tmp_path, uri, models=["Qwen/Qwen3-0.6B-Base", "tiny"], methods=["grpo", "clip_b"])
    content = content_of_experiment(uri, "matrix")
    [entropy] = [section for section in sections_of(content) if section["id"] == "entropy"]
    by_model: list[list[figures.Figure]] = [[figure for _, figure in of_model] for _, of_model in entropy["groups"]]
    own, plain = (of_model[0] for of_model in by_model)
    grpo, clip_b, reported, *others = own.series
    assert [grpo["name"], clip_b["name"]] == [each["name"] for each in plain.series]
    assert grpo["y"][0] == pytest.approx(
        (metrics_of(0, 0, 1)["entropy/mean"] * metrics_of(0, 1, 1)["entropy/mean"]) ** 0.5, rel=1e-4
    )
    assert reported["x"] == list(range(1, STEPS + 1))  # no further than its own steps
    assert reported["y"] == [1.3297, 1.2353, 1.2004, 0.318]
    assert set(reported["low"]) == {None}
    assert [each["reported"] for each in (reported, *others)] == [True] * 3
    assert own.lines[2] == ["GRPO, MATH (reported)", "1.33 (step 1)", "0.318 (step 4)", "", "0.318", "1.33"]
    assert figures.REPORTED_NOTE in own.note
    assert figures.REPORTED_NOTE not in plain.note
    assert all("reported" not in method for method in content.drawn_methods)
    assert "GRPO, MATH (reported)" in render_page(content)
