"""Cells of other code or of another base model are pooled with a mark and a note, in every format of the table."""

from __future__ import annotations

import csv
import html
import io
from pathlib import Path

import pytest
from boards import MadeUpMatrix, json_rows, show_table, smoke_matrix

from harness.page import page
from harness.page.content import content_of_config, content_of_experiment
from harness.table import origins
from harness.table.frames import DONE, cells_frame
from harness.table.publish import publish

HARNESS, EDITED = "1" * 64, "2" * 64
BASE, OTHER = "a" * 64, "b" * 64
COMMIT = "0.1.0 cccccccc"

# grpo's seed 1 was made by edited files, clip_b's wholly by them.
EDITS = {("grpo", 1): EDITED, ("clip_b", 0): EDITED, ("clip_b", 1): EDITED}
CODE = (
    f"cells were made by different code of the harness: {COMMIT} (harness 11111111) (grpo: seed 0; ppo: seeds 0, 1), "
    f"{COMMIT} (harness 22222222) (grpo: seed 1; clip_b: seeds 0, 1)"
)


def filled(
    made: MadeUpMatrix, harness: dict[tuple[str, int], str], base_model: dict[tuple[str, int], str]
) -> MadeUpMatrix:
    for cell in made.cells:
        place = cell.method, cell.seed
        made.send(cell, harness=harness.get(place, HARNESS), base_model=base_model.get(place, BASE))
    publish(made.config, made.cells)
    return made


def asked(made: MadeUpMatrix) -> list[str]:
    return ["--experiment", "made", "--uri", made.config.tracking_uri]


@pytest.mark.slow
def test_mixed_of_one_origin(tmp_path: Path, mlflow_uri: str) -> None:
    made = filled(smoke_matrix(tmp_path, mlflow_uri), {}, {})
    rows = json_rows(*asked(made))
    assert [(row["mixed"], row["base_model"]) for row in rows] == [([], BASE[:12])] * 4
    assert "§" not in show_table(*asked(made))


@pytest.mark.slow
def test_mixed_code_in_every_format(tmp_path: Path, mlflow_uri: str) -> None:
    """ppo's own cells are alike, but the baseline that they are compared with was made by both."""
    made = filled(smoke_matrix(tmp_path, mlflow_uri), EDITS, {})
    sentence, rows = CODE, json_rows(*asked(made))
    assert [row["method"] for row in rows] == ["base model", "grpo", "clip_b", "ppo"]
    assert [row["mixed"] for row in rows] == [[sentence]] * 4
    note = f"§ countdown, countdown-tiny: {sentence}."
    markdown = show_table(*asked(made), "--format", "md")
    assert f"- {note}\n" in markdown
    for name in ("base model", "grpo", "clip_b", "ppo"):
        assert f"\n| {name} § |" in markdown
        assert any(line.split("  ")[0].strip() == f"{name} §" for line in show_table(*asked(made)).splitlines())
    assert note in " ".join(show_table(*asked(made)).split())
    lines = list(csv.DictReader(io.StringIO(show_table(*asked(made), "--format", "csv"))))
    assert [line["mixed"] for line in lines] == [sentence] * 4
    compared = show_table(*asked(made), "--compare", "--format", "md")
    assert f"- {note}\n" in compared
    assert "\n| clip_b § |" in compared
    latex = show_table(*asked(made), "--format", "latex")
    assert f"% Marked: {sentence}.\n" in latex
    assert "\nclip\\_b\\textsuperscript{\\S} & " in latex
    [summary] = (tmp_path / "mlartifacts").rglob("leaderboard.md")
    assert f"- {note}\n" in summary.read_text()
    for content in (content_of_experiment(mlflow_uri, "made"), content_of_config(made.config, made.cells, None)):
        text = html.unescape(page.render_page(content))
        assert f"<li>{note}</li>" in text
        assert f"<li>§ {sentence[0].upper()}{sentence[1:]}.</li>" in text
        assert ">clip_b §</th>" in text


@pytest.mark.slow
def test_mixed_marks_rows_that_differ_from_the_baseline(tmp_path: Path, mlflow_uri: str) -> None:
    made = filled(
        smoke_matrix(tmp_path, mlflow_uri), {("ppo", 1): EDITED}, {("clip_b", 0): OTHER, ("clip_b", 1): OTHER}
    )
    rows = {row["method"]: row for row in json_rows(*asked(made))}
    bases = (
        f"cells began from different base models: {BASE[:12]} (grpo, ppo: seeds 0, 1), {OTHER[:12]} "
        "(clip_b: seeds 0, 1)"
    )
    code = (
        f"cells were made by different code of the harness: {COMMIT} (harness 11111111) (grpo, clip_b: seeds 0, 1; "
        f"ppo: seed 0), {COMMIT} (harness 22222222) (ppo: seed 1)"
    )
    assert {method: row["mixed"] for method, row in rows.items()} == {
        "base model": [],
        "grpo": [],
        "clip_b": [bases],
        "ppo": [code],
    }
    assert [rows[method]["base_model"] for method in rows] == [BASE[:12], BASE[:12], OTHER[:12], BASE[:12]]
    turned = {row["method"]: row["mixed"] for row in json_rows(*asked(made), "--baseline", "clip_b")}
    assert turned == {"base model": [bases], "grpo": [bases], "clip_b": [], "ppo": [code, bases]}


@pytest.mark.slow
def test_mixed_base_models_of_a_seed(tmp_path: Path, mlflow_uri: str) -> None:
    made = filled(smoke_matrix(tmp_path, mlflow_uri), {}, {(method, 1): OTHER for method in ("grpo", "clip_b", "ppo")})
    sentence = (
        f"cells began from different base models: {BASE[:12]} (all methods: seed 0), {OTHER[:12]} (all methods: seed 1)"
    )
    assert [row["mixed"] for row in json_rows(*asked(made))] == [[sentence]] * 4
    assert show_table(*asked(made), "--format", "md").count(sentence) == 1


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


@pytest.mark.slow
def test_mixed_code_by_commit(tmp_path: Path, mlflow_uri: str) -> None:
    made = smoke_matrix(tmp_path, mlflow_uri, "methods=[grpo,clip_b]")
    for cell in made.cells:
        made.send(cell, commit=("d" if (cell.method, cell.seed) == ("clip_b", 1) else "c") * 40)
    publish(made.config, made.cells)
    rows = {row["method"]: row["mixed"] for row in json_rows(*asked(made))}
    assert rows["grpo"] == rows["base model"] == []
    assert rows["clip_b"] == [
        f"cells were made by different code of the harness: {COMMIT} (grpo: seeds 0, 1; clip_b: seed 0), "
        "0.1.0 dddddddd (clip_b: seed 1)"
    ]
