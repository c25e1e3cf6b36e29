"""`entrobench explain` through the command line: its results for known methods, and mistakes."""

from __future__ import annotations

import json
import math

import pytest
from places import REPOSITORY

import baselines
from harness import cli
from harness.base.errors import UserError
from harness.commands import explain as command

SMALL = ["train.prompts=8", "train.group=8", "train.updates=2", "train.lr=1e-3", "train.warmup_steps=0"]
SUMMED = ("share", "size", "plain_size", "predicted", "plain_predicted")
QUADRANTS = ("positive_above", "positive_below", "negative_above", "negative_below", "rest")

Rows = dict[tuple[str, str, str], dict[str, float]]


def explained(capsys: pytest.CaptureFixture[str], methods: str) -> Rows:
    arguments = cli.parse_command(["explain", methods, "demo", *SMALL, "--batches", "2", "--format", "json"])
    assert command.call(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    return {(row.pop("method"), row.pop("moment"), row.pop("quadrant")): row for row in result}


@pytest.mark.slow
def test_explain_rows_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    rows = explained(capsys, "all")
    assert {method for method, _, _ in rows} == set(baselines.METHODS)
    for method, moment, quadrant in rows:
        if quadrant == "all":
            parts = [rows[method, moment, name] for name in QUADRANTS]
            for name in SUMMED:
                total = math.fsum(part[name] for part in parts)
                assert rows[method, moment, "all"][name] == pytest.approx(total, rel=1e-5, abs=1e-9)
    for moment in ("first update", "after the updates"):
        plain = rows["grpo", moment, "all"]
        assert plain["predicted"] == plain["plain_predicted"]
        assert rows["entropy_bonus", moment, "all"]["predicted"] > plain["predicted"]
        assert all(rows[m, moment, "all"]["plain_predicted"] == plain["predicted"] for m, _, _ in rows)

    # Without a clip there is nothing that CE-GPPO does otherwise; with one, it drops none of the tokens beyond it.
    first, later = (rows["ce_gppo", moment, "all"] for moment in ("first update", "after the updates"))
    assert first == rows["grpo", "first update", "all"]
    assert later["predicted"] != rows["grpo", "after the updates", "all"]["predicted"]
    assert later["dropped"] < rows["grpo", "after the updates", "all"]["dropped"]

    # The released clips drop tokens of negative advantage alone.
    for clip in ("clip_b", "clip_v"):
        at_first = {quadrant: rows[clip, "first update", quadrant]["dropped"] for quadrant in QUADRANTS}
        plain = {quadrant: rows["grpo", "first update", quadrant]["dropped"] for quadrant in QUADRANTS}
        more = {quadrant for quadrant in QUADRANTS if at_first[quadrant] > plain[quadrant]}
        assert more
        assert more <= {"negative_above", "negative_below"}


@pytest.mark.slow
def test_explain_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(capsys, "clip_b") == explained(capsys, "clip_b")


def test_explain_in_the_documentation() -> None:
    rows = json.loads((REPOSITORY / "results" / "reference" / "dynamics" / "explain.json").read_text())
    lines = (REPOSITORY / "docs" / "dynamics.md").read_text().splitlines()
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.count("|") == 8]
    shown = [cells for cells in shown if cells[-1][0] in "+-" and cells[1] != "---:"]
    by_method: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for row in rows:
        by_method.setdefault((row["moment"], row["method"]), {})[row["quadrant"]] = row
    expected = []
    for (_, method), row_of in by_method.items():
        whole = row_of["all"]["predicted"], row_of["all"]["predicted"] - row_of["all"]["plain_predicted"]
        quadrants = [row_of[name] for name in QUADRANTS[:4]]
        cells = [f"{row['dropped']:.1%} x{row['size'] / row['plain_size']:.2f}" for row in quadrants]
        expected.append([method, *cells, *(f"{x:+.5f}" for x in whole)])
    assert sorted(shown) == sorted(expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["clip_c", "demo"], "unknown method 'clip_c'.* did you mean"),
        (["grpo", "demo", "--batches", "0"], "--batches is 0; allowed: 1 and more"),
        (["grpo", "demoo"], "did you mean 'demo'"),
    ],
)
def test_explain_command_mistakes(arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        command.call(cli.parse_command(["explain", *arguments]))
