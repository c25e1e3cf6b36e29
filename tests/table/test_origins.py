"""Cells of other code or of another base model are pooled with a mark and a note, in every format of the table."""

from __future__ import annotations

import csv
import html
import io
import itertools
from pathlib import Path

import pytest
from boards import json_rows, show_table, smoke_matrix

from harness.page import page
from harness.page.content import content_of_config, content_of_experiment
from harness.table import origins
from harness.table.frames import BASE_MODEL, DONE, cells_frame
from harness.table.publish import publish

HARNESS, EDITED = "1" * 64, "2" * 64
BASE, OTHER = "a" * 12, "b" * 12
COMMIT = "0.1.0 cccccccc"
DIFFERENT = "cells were made by different code of the harness"

# grpo's seed 1 was made by edited files, clip_b's wholly by them.
EDITS = {("grpo", 1): EDITED, ("clip_b", 0): EDITED, ("clip_b", 1): EDITED}
CODE = (
    f"{DIFFERENT}: {COMMIT} (harness 11111111) (grpo: seed 0; ppo: seeds 0, 1), {COMMIT} (harness 22222222) (grpo: "
    "seed 1; clip_b: seeds 0, 1)"
)


@pytest.mark.slow
def test_mixed_code_in_every_format(tmp_path: Path, mlflow_uri: str) -> None:
    """ppo's own cells are alike, but the baseline that they are compared with was made by both."""
    made = smoke_matrix(tmp_path, mlflow_uri)
    for cell in made.cells:
        made.send(cell, harness=EDITS.get((cell.method, cell.seed), HARNESS), base_model="a" * 64)
    publish(made.config, made.cells)
    asked = ("--experiment", "made", "--uri", mlflow_uri)
    sentence, rows = CODE, json_rows(*asked)
    assert [row["method"] for row in rows] == ["base model", "grpo", "clip_b", "ppo"]
    assert [(row["mixed"], row["base_model"]) for row in rows] == [([sentence], BASE)] * 4
    note = f"§ countdown, countdown-tiny: {sentence}."
    markdown = show_table(*asked, "--format", "md")
    assert f"- {note}\n" in markdown
    for name in ("base model", "grpo", "clip_b", "ppo"):
        assert f"\n| {name} § |" in markdown
        assert any(line.split("  ")[0].strip() == f"{name} §" for line in show_table(*asked).splitlines())
    assert note in " ".join(show_table(*asked).split())
    lines = list(csv.DictReader(io.StringIO(show_table(*asked, "--format", "csv"))))
    assert [line["mixed"] for line in lines] == [sentence] * 4
    compared = show_table(*asked, "--compare", "--format", "md")
    assert f"- {note}\n" in compared
    assert "\n| clip_b § |" in compared
    latex = show_table(*asked, "--format", "latex")
    assert f"% Marked: {sentence}.\n" in latex
    assert "\nclip\\_b\\textsuperscript{\\S} & " in latex
    [summary] = (tmp_path / "mlartifacts").rglob("leaderboard.md")
    assert f"- {note}\n" in summary.read_text()
    for content in (content_of_experiment(mlflow_uri, "made"), content_of_config(made.config, made.cells, None)):
        text = html.unescape(page.render_page(content))
        assert f"<li>{note}</li>" in text
        assert f"<li>§ {sentence[0].upper()}{sentence[1:]}.</li>" in text
        assert ">clip_b §</th>" in text


METHODS = ("grpo", "clip_b", "ppo")
PLACES = [*itertools.product(METHODS, (0, 1))]
BASES = f"cells began from different base models: {BASE}"
OTHERS = {("clip_b", seed): {"base_model": OTHER} for seed in (0, 1)}
BY_METHOD = f"{BASES} (grpo, ppo: seeds 0, 1), {OTHER} (clip_b: seeds 0, 1)"


@pytest.mark.parametrize(
    ("changes", "baseline", "sentence", "concerned"),
    [
        (OTHERS, "grpo", BY_METHOD, {"clip_b"}),
        (OTHERS, "clip_b", BY_METHOD, {BASE_MODEL, "grpo", "ppo"}),
        (
            {(method, 1): {"base_model": OTHER} for method in METHODS},
            "grpo",
            f"{BASES} (all methods: seed 0), {OTHER} (all methods: seed 1)",
            {BASE_MODEL, *METHODS},
        ),
        (
            {("ppo", 1): {"harness": EDITED}},
            "grpo",
            f"{DIFFERENT}: {COMMIT} (harness 11111111) (grpo, clip_b: seeds 0, 1; ppo: seed 0), {COMMIT} (harness "
            "22222222) (ppo: seed 1)",
            {"ppo"},
        ),
        (
            {at: {"harness": ""} for at in PLACES} | {("clip_b", 1): {"harness": "", "version": "0.1.0 dddddddd"}},
            "grpo",
            f"{DIFFERENT}: {COMMIT} (grpo, ppo: seeds 0, 1; clip_b: seed 0), 0.1.0 dddddddd (clip_b: seed 1)",
            {"clip_b"},
        ),
    ],
    ids=["base model", "base model of the baseline", "base model of a seed", "code", "commit"],
)
def test_mixtures(
    changes: dict[tuple[str, int], dict[str, str]], baseline: str, sentence: str, concerned: set[str]
) -> None:
    """Of cells that are alike but for some changes."""
    rows = []
    for method, seed in PLACES:
        made = {"version": COMMIT, "harness": HARNESS, "base_model": BASE, **changes.get((method, seed), {})}
        rows.append({"method": method, "seed": seed, "state": DONE, **made})
    rows += [{**row, "method": BASE_MODEL} for row in rows[:2]]  # which borrows the cells of a method
    cells = cells_frame(rows)
    methods = {name: cells[cells["method"] == name] for name in (BASE_MODEL, *METHODS)}
    assert origins.mixtures(methods, baseline) == [(sentence, concerned)]


def test_mixtures_of_libraries_and_rounding() -> None:
    """Only parts that differ are named; a record without them differs from none."""
    libraries = {0: "python 3.13.1, torch 2.9.0", 1: "python 3.13.1, torch 2.8.0", 2: ""}
    rounding = {
        0: "instructions AVX2, threads 1",
        1: "instructions AVX2, threads 1",
        2: "instructions AVX512, threads 2",
    }
    rows = []
    for seed in range(3):
        row = {"method": "grpo", "seed": seed, "state": DONE, "libraries": libraries[seed]}
        rows.append(row | {"rounding": rounding[seed], "harness": HARNESS})
    rows.append({"method": "ppo", "seed": 0, "state": DONE, **{name: rows[1][name] for name in origins.LISTS}})
    cells = cells_frame(rows)
    methods = {name: cells[cells["method"] == name] for name in ("grpo", "ppo")}
    assert origins.mixtures(methods, "grpo") == [
        (
            "cells were computed by different versions of libraries: torch 2.9.0 (grpo: seed 0), torch 2.8.0 (grpo: "
            "seed 1; ppo: seed 0)",
            {"grpo", "ppo"},
        ),
        (
            "cells were computed with sums in different orders: instructions AVX2, threads 1 (grpo: seeds 0, 1; ppo: "
            "seed 0), instructions AVX512, threads 2 (grpo: seed 2)",
            {"grpo", "ppo"},
        ),
    ]
    assert origins.mixtures({"ppo": methods["ppo"]}, "ppo") == []
