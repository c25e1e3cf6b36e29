"""`entrobench explain` through the command line: its results for known methods, and mistakes."""

from __future__ import annotations

import json
import math

import pytest
from commands import run_command
from rich.console import Console

import baselines
from harness import cli
from harness.commands import explain as command
from harness.methods.composition import Method
from harness.theory import explain

SMALL = ["train.prompts=8", "train.group=4", "train.updates=2", "train.lr=1e-3", "train.warmup_steps=0"]
SUMMED = ("share", "size", "plain_size", "predicted", "plain_predicted")
LEFT_OUT = "has a term that is left out"
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
    refused = {"a2po", "dph_rl", "passk"}  # the first two need train.filter, the last one groups of 5
    assert {method for method, _, _ in rows} == set(baselines.METHODS) - refused
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


@pytest.mark.slow
def test_explain_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(capsys, "clip_b") == explained(capsys, "clip_b")


def test_notes_below_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("explain", "print_explanations", "print_strengths"):
        monkeypatch.setattr(explain, name, lambda *_: [])
    for spec, said in (("grpo(lr=3e-4)+clip_b", "a learning rate of its own changes nothing here"), ("tre", LEFT_OUT)):
        assert said in run_command("explain", spec, "demo")
    assert run_command("explain", "grpo clip_b", "demo") == ""
    assert LEFT_OUT in run_command("explain", "dph_rl", "demo", "train.filter={n: 4, low: 0, high: 0.5}")


def test_with_shares_of_clips_without_a_strength() -> None:
    specs = ("clip_b", "ppo", "clip_v(share=0.01)", "ppo+clip_b", "clip_servo", "top_entropy", "clip_v")
    methods = {spec: Method.of(spec, baselines.table(), {"clip_v": {"share": 0.3}}) for spec in specs}
    found = explain.with_shares(methods)
    assert [*found] == ["clip_b", "clip_v"]
    assert found["clip_v"][:2] == ["clip_v(share=0.005)", "clip_v(share=0.01)"]


@pytest.mark.parametrize(
    ("offsets", "middle"),
    [
        ([0.4, 0.69, 1.3, 2.4], 1),
        ([0.1, 0.2, 0.5, 0.9], 2),
        ([0.6, 0.7, 0.8, 0.9], 1),  # the least has no neighbor below
        ([0.1, 0.2, 0.3, 0.7], 2),  # nor the most one above
        ([0.0, 0.0, 0.0, 0.0], 2),
    ],
)
def test_recommended_around_the_first_that_takes_back_half(offsets: list[float], middle: int) -> None:
    assert explain.recommended(dict(zip("abcd", offsets, strict=True))) == [*"abcd"][middle - 1 : middle + 2]


def test_print_strengths_of_known_rows(capsys: pytest.CaptureFixture[str]) -> None:
    specs = [f"clip_b(share={share})" for share in ("0.005", "0.01", "0.02")]
    rows = []
    for spec, dropped, predicted in zip(specs, (0.1, 0.2, 0.4), (-0.003, -0.001, 0.001), strict=True):
        same = {"method": spec, "moment": "first update", "plain_predicted": -0.004, "predicted": predicted}
        rows += [
            {**same, "quadrant": "all", "share": 1.0, "dropped": 0.6},
            {**same, "quadrant": "rest", "share": 0.5, "dropped": 1.0},
            {**same, "quadrant": "negative_below", "share": 0.3, "dropped": dropped},
            {**same, "quadrant": "positive_above", "share": 0.2, "dropped": 0.05},
        ]
    explain.print_strengths(Console(width=100), {"clip_b": specs}, rows)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:4] == [
        [specs[0], "4.0%", "-0.00300", "25%"],
        [specs[1], "7.0%", "-0.00100", "75%"],
        [specs[2], "13.0%", "+0.00100", "125%"],
    ]
    assert lines[-2:] == [
        ["#", "the", "second", "takes", "back", "75%", "of", "the", "predicted", "fall"],
        f"clip_b: {specs}".split(),
    ]
    assert math.isnan(explain.offset({"plain_predicted": 0.1, "predicted": 0.2})), "there is no fall"
    explain.print_strengths(Console(width=100), {"clip_b": specs}, [{**row, "plain_predicted": 0.001} for row in rows])
    said = capsys.readouterr().out
    assert "no strength is recommended: under plain GRPO the entropy is not predicted to fall" in said
    assert "nan" not in said
    assert "tune" not in said
