"""Tokens until a target, performance profiles, collapsed and exploded runs, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas
import pytest
from answered import answered_pack
from boards import made_up_frames, told

from harness.table.endings import collapsed_and_exploded
from harness.table.leaderboard import leaderboard_rows
from harness.table.reach import profile_score, profile_scores, tokens_until


def test_tokens_until_a_target() -> None:
    tokens = {1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}
    scores = {0: 0.9, 2: 0.5, 4: 0.6}
    assert tokens_until(scores, tokens, 0.5) == 30
    assert tokens_until(scores, tokens, 0.55) == 100
    assert tokens_until(scores, tokens, 0.7) == math.inf  # step 0 is before training


def test_the_score_of_a_profile_is_the_area_below_it() -> None:
    ratios = [1.0, 2.5, math.inf]
    steps = np.linspace(1, 4, 300_001)
    rho = np.mean([[ratio <= r for r in steps[::100]] for ratio in ratios], axis=0)
    assert profile_score(ratios) == pytest.approx(np.trapezoid(rho, steps[::100]) / 3, abs=1e-3)
    assert profile_score([1.0, 1.0]) == 1
    assert profile_score([math.inf]) == 0


def test_profiles_over_tables() -> None:
    never = math.inf
    found = profile_scores([{"a": 10.0, "b": 20.0}, {"a": 40.0, "b": 10.0}, {"a": never, "b": never}])
    assert found == {"a": (1 + 0) / 2, "b": pytest.approx((2 / 3 + 1) / 2)}
    assert profile_scores([{"a": 0.0, "b": 0.0, "c": 1.0, "d": never}]) == {"a": 1, "b": 1, "c": 0, "d": 0}


def test_the_rows_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = answered_pack(tmp_path)  # both methods have the same answers, and 10 tokens at each of the steps 0 and 1
    rows = json.loads(told(capsys, "--pack", str(pack), "--reach", "-1", "--format", "json"))
    assert [row["method"] for row in rows] == ["grpo", "clip_b"]
    for row in rows:
        assert (row["tokens_to_avg"], row["seeds_to_avg"], row["profile_avg"]) == (20, 2, 1)
        assert (row["tokens_to_pass"], row["seeds_to_pass"], row["profile_pass"]) == (20, 2, 1)
    rows = json.loads(told(capsys, "--pack", str(pack), "--reach", "1", "--format", "json"))
    assert [(row["tokens_to_pass"], row["seeds_to_pass"], row["profile_pass"]) for row in rows] == [(None, 0, None)] * 2
    text = told(capsys, "--pack", str(pack), "--reach", "1")
    assert "not reached" in text
    assert "Targets, seed by seed" in text
    assert "--reach has tables of its own" in told(capsys, "--pack", str(pack), "--reach", "1", "--compare")


def ended(first: list[float], last: list[float], collapsed: list[float]) -> pandas.DataFrame:
    return pandas.DataFrame({"entropy_first": first, "entropy_last": last, "collapsed": collapsed})


def test_collapsed_and_exploded_seeds() -> None:
    nan = math.nan
    some = ended([1.0, 1.0, 1.0, 1.0], [0.09, 0.1, 3.0, 3.01], [nan] * 4)
    assert collapsed_and_exploded(some) == (0.25, 0.25)
    stopped = ended([1.0, 1.0], [0.5, nan], [7.0, nan])
    assert collapsed_and_exploded(stopped) == (1.0, 0.0)
    unknown = ended([nan], [nan], [nan])
    assert collapsed_and_exploded(unknown) == (None, None)


def test_the_shares_are_columns_of_rows() -> None:
    right = {method: {seed: np.ones((3, 4), int) for seed in (0, 1)} for method in ("grpo", "wild")}
    last = {("wild", 0): 9.0, ("wild", 1): 0.1, ("grpo", 0): 1.0, ("grpo", 1): 1.0}
    rows = leaderboard_rows(made_up_frames(right, entropy_last=last), "grpo", {"countdown": 2})
    shares = {row.method: (row.collapsed_share, row.exploded_share) for row in rows}
    assert shares == {"grpo": (0.0, 0.0), "wild": (0.5, 0.5)}
