"""The leaderboard in terminals of any width: the order in which columns are left out, and the note about it."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable
from functools import partial

import pytest
from frames import leaderboard_row

from harness.base.terminal import visible
from harness.cells.log import NO_SIGNAL
from harness.table.leaderboard import LeaderboardRow
from harness.table.render import as_csv, as_json
from harness.table.render import render_rows as render
from harness.table.statistics import Estimate


def row(method: str, mean: float) -> LeaderboardRow:
    return leaderboard_row(method, 16, Estimate(mean, mean - 0.125, mean + 0.125))


ROWS = [row("grpo", 0.25), row("adaptive_entropy", 0.5), row("a\x1b[2Jb", 0.5)]
ALWAYS = ["method", "Avg@K", "Pass@16"]
BOTH = ["Avg@K - grpo", "Pass@16 - grpo"]
VERDICT = "verdict"
FIRST, LAST = "entropy, start", "entropy, end"


def test_render_fits_the_terminal() -> None:
    for width in range(40, 200):
        text = render(ROWS, "table", width)
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text
        assert "adaptive_entropy" in text


@pytest.mark.parametrize(
    ("width", "columns", "gone"),
    [
        (160, [*ALWAYS, *BOTH, VERDICT, "distinct right", FIRST, LAST, "seeds"], []),
        (112, [*ALWAYS, *BOTH, VERDICT, LAST], ["distinct right", FIRST, "seeds"]),
        (92, [*ALWAYS, BOTH[1], VERDICT, LAST], [BOTH[0], "distinct right", FIRST, "seeds"]),
    ],
)
def test_render_drops_the_least_important_columns(width: int, columns: list[str], gone: list[str]) -> None:
    text = render(ROWS, "table", width)
    assert text.splitlines()[2].split() == " ".join(columns).split()
    said = " ".join(text.split())  # which may be folded
    assert ("further columns" in said) == bool(gone)
    assert not gone or f"further columns (--format csv): {'; '.join(gone)}" in said


def test_render_without_a_terminal() -> None:
    assert render(ROWS, "table") == render(ROWS, "table", 500)
    assert "further columns" not in render(ROWS, "table")


def test_render_escapes_html_and_links_in_markdown() -> None:
    assert r"| a\<b>\\\| | 0.250" in render([row("a<b>\\|", 0.25)], "md")
    named = row("[x](http://evil) ![](http://evil/i.png) `code` *b*\n| a | b |", 0.25)
    named = dataclasses.replace(named, flags=["see [here](http://evil) <b>"], model="[m](http://evil)")
    text = render([named], "md")
    escaped = r"\[x\](http://evil) !\[\](http://evil/i.png) \`code\` \*b\* \| a \| b \|"
    assert [line for line in text.splitlines() if line.startswith(f"| {escaped} | 0.250")]
    assert r"**countdown, \[m\](http://evil) †**" in text
    assert r"see \[here\](http://evil) \<b>" in text
    assert "](" not in text.replace(r"\](", "")


@pytest.mark.parametrize("how", ["md", "table"])
def test_render_says_above_a_table_that_nothing_was_learned(how: str) -> None:
    nothing, other = f"grpo seed 0: {NO_SIGNAL} (all answers wrong)", "contaminated: 3 of 6"
    rows = [row("base model", 0.25), row("grpo", 0.25)]
    text = render([dataclasses.replace(each, flags=[nothing, other]) for each in rows], how)
    above, title, below = text.partition("countdown, tiny †")
    assert above.splitlines()[0] == f"{nothing}."
    assert title
    assert (below.count(nothing), below.count(f"† countdown: {other}")) == (0, 1)
    alone = render([dataclasses.replace(each, flags=[nothing]) for each in rows], how)
    assert "†" not in alone


STEERING = "\x1b[31m\u202eright-to-left\u2066\u200b\u061c\r\ud800\U000e0041"


@pytest.mark.parametrize("form", [as_csv, as_json, partial(render, how="md"), partial(render, how="table")])
def test_render_without_control_characters(form: Callable[[list[LeaderboardRow]], str]) -> None:
    text = form([dataclasses.replace(row("grpo", 0.25), flags=[STEERING])])
    assert visible(text) == text
    assert r"\u202eright-to-left" in text
    text.encode()


@pytest.mark.parametrize("begins", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1"])
def test_render_without_formulas_in_csv(begins: str) -> None:
    [line] = csv.DictReader(io.StringIO(as_csv([row(begins, -0.25)])))
    assert line["method"] == visible(f"'{begins}")
    assert line["delta_to_baseline.mean"] == "-0.25", "a number is none"
