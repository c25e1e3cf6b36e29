"""The formats of a table: LaTeX as in papers, and answer counts as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from frames import comparison, made_up_frames
from pyarrow import parquet

from harness.table import formats
from harness.table.board import Board
from harness.table.compare import Comparison
from harness.table.select import Part
from harness.table.statistics import Estimate


def place(method: str, mean: Estimate | None, best: bool, **changes: Any) -> Comparison:
    return comparison(method, mean=mean, best=best, **{"task": "aime_24", **changes})


def test_render_latex() -> None:
    compared = [
        place("grpo", Estimate(0.25, 0.2, 0.3), best=False),
        place("clip_b & 50%", Estimate(0.5, 0.4, 0.6), best=True),
        place("grpo", Estimate(0.75), best=True, score="Pass@16"),
        place("clip_b & 50%", None, best=False, score="Pass@16"),
        place("grpo", Estimate(0.98, 0.9, 1.0), best=True, task="all tasks"),
    ]
    assert formats.render_latex(compared).splitlines()[2:] == [
        r"\begin{tabular}{lccc}",
        r"\toprule",
        r"Method & aime\_24 Avg@K & aime\_24 Pass@16 & all tasks Avg@K \\",
        r"\midrule",
        r"grpo & $0.250 \pm 0.050$ & $\mathbf{0.750}$ & $\mathbf{0.980\;[0.900, 1.000]}$ \\",
        r"clip\_b \& 50\% & $\mathbf{0.500 \pm 0.100}$ & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_render_latex_marks_another_trainer() -> None:
    compared = [place("grpo", Estimate(0.25), best=False), place("clip_b", Estimate(0.5), best=True, trainer="trl")]
    names = [line.partition(" & ")[0] for line in formats.render_latex(compared).splitlines() if "$" in line]
    assert names == ["grpo", r"clip\_b (trained by trl)"]


def test_render_latex_of_two_models() -> None:
    compared = [place("grpo", Estimate(0.5), best=True, model=model) for model in ("one", "two\nlines")]
    text = formats.render_latex(compared)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert [line[:12] for line in text.splitlines() if "means" in line] == ["% one: means", "% two lines:"]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b", r"a\_b"),
        ("50% & $1 #2", r"50\% \& \$1 \#2"),
        ("{x}", r"\{x\}"),
        ("\\input", r"\textbackslash{}input"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("a|b<c>", r"a\textbar{}b\textless{}c\textgreater{}"),
        ("[a]*", "{[}a]{*}"),
        ("größe", "größe"),
        ("a\x1b\u202eb", r"a\textbackslash{}x1b\textbackslash{}u202eb"),
        ("^^5cinput{x}", r"\textasciicircum{}\textasciicircum{}5cinput\{x\}"),
    ],
)
def test_as_latex(text: str, escaped: str) -> None:
    assert formats.as_latex(text) == escaped


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_render_latex_of_names_with_line_ends(end: str) -> None:
    text = formats.render_latex([place("grpo", Estimate(0.5), best=True, model=f"one{end}\\input{{x}}")])
    assert [line for line in text.splitlines() if "input" in line and not line.startswith("% one")] == []
    assert all(sign not in text for sign in end if sign != "\n")


def test_render_latex_in_a_narrow_terminal() -> None:
    frames = made_up_frames({"grpo": {0: np.eye(4, dtype=int)}})
    lacking = "Of 3 cells: 1 done, 2 failed."
    part = Part("demo", Board("demo", "grpo", {"countdown": 2}, [], {}), frames, {"grpo"}, [lacking])
    assert f"% {lacking}" in formats.render_parts([part], "latex", width=20).splitlines()


def test_write_parquet(tmp_path: Path) -> None:
    first, second = np.array([[1, 0, 1], [0, 0, 0]]), np.array([[1, 1, 1], [0, 1, 0]])
    frames = made_up_frames(
        {"clip_b": {4: second, 0: first}, "grpo": {}},
        "aime",
        "dapo",
        problems=["p=1", "größe"],
        right_distinct={("clip_b", 4): [2, 1], ("clip_b", 0): [1, 0]},
        solutions={("clip_b", 0): [4, 5]},
    )
    formats.write_parquet({"demo": frames}, tmp_path / "new" / "answers.parquet")
    table = parquet.read_table(tmp_path / "new" / "answers.parquet")
    same = {
        "experiment": "demo",
        "method": "clip_b",
        "trained_on": "dapo",
        "task": "aime",
        "model": "tiny",
        "setting": "",
        "samples": 3,
    }
    counts = ("right", "samples", "right_distinct", "solutions")
    assert {table.schema.field(name).type for name in counts} == {pa.int32()}
    assert table.to_pylist() == [
        {**same, "seed": 0, "problem": "p=1", "right": 2, "right_distinct": 1, "solutions": 4},
        {**same, "seed": 0, "problem": "größe", "right": 0, "right_distinct": 0, "solutions": 5},
        {**same, "seed": 4, "problem": "p=1", "right": 3, "right_distinct": 2, "solutions": None},
        {**same, "seed": 4, "problem": "größe", "right": 1, "right_distinct": 1, "solutions": None},
    ]
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "answers.parquet"]
