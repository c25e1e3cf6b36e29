"""The finding of a page: its sentences and its forest plot are those of the frames."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from frames import comparison, made_up_frames
from known import known
from pandas import DataFrame

from harness.page import scores
from harness.page.content import ScoreTable
from harness.page.finding import COLORS, TICKS, colored_methods, finding_sentences, forest_plot, nice_ticks
from harness.table.columns import format_estimate
from harness.table.compare import Comparison, comparisons
from harness.table.frames import Frames
from harness.table.leaderboard import LeaderboardRow, leaderboard_rows
from harness.table.statistics import Estimate, crossed_p_value, difference_interval

K, SAMPLES, PROBLEMS, SEEDS = 2, 6, 40, 4
ABILITIES = {"grpo": 0.0, "best": 2.0, "better": 1.4, "same": 0.05, "worse": -1.6}


@pytest.fixture(scope="module")
def rights() -> dict[str, dict[int, np.ndarray]]:
    """Verdicts by method, seed, problem and sample."""
    drawn = np.random.default_rng(3)
    difficulties_J = drawn.normal(size=PROBLEMS)
    made: dict[str, dict[int, np.ndarray]] = {}
    for method, ability in ABILITIES.items():
        made[method] = {}
        for seed in range(SEEDS):
            chances_J = 1 / (1 + np.exp(difficulties_J - ability))
            made[method][seed] = (drawn.random((PROBLEMS, SAMPLES)) < chances_J[:, None]).astype(int)
    return made


def table_with(*compared: Comparison, rows: Sequence[LeaderboardRow] = ()) -> ScoreTable:
    return ScoreTable("countdown, tiny", [*rows], DataFrame(), [], [*compared])


def table_of(frames: Frames) -> ScoreTable:
    ks = {"countdown": K}
    return table_with(*comparisons(frames, "grpo", ks), rows=leaderboard_rows(frames, "grpo", ks))


def scores_by_loop(right_JN: np.ndarray, score: str) -> list[float]:
    """Return Avg@K or Pass@2 of each problem; the latter by listing all pairs of samples."""
    if score == "Avg@K":
        return [sum(row) / len(row) for row in right_JN.tolist()]
    passed = []
    for row in right_JN.tolist():
        pairs = list(itertools.combinations(row, K))
        passed.append(sum(any(pair) for pair in pairs) / len(pairs))
    return passed


def differences_by_loop(rights: Mapping[str, Mapping[int, np.ndarray]], score: str) -> dict[str, np.ndarray]:
    """Return each method's differences from grpo by seed and problem."""
    of_method = {}
    for method, by_seed in rights.items():
        of_method[method] = np.array([scores_by_loop(by_seed[seed], score) for seed in sorted(by_seed)])
    return {method: x_SJ - of_method["grpo"] for method, x_SJ in of_method.items() if method != "grpo"}


def significant_by_loop(differences: Mapping[str, np.ndarray]) -> set[str]:
    """Return the methods that Holm's steps reject at 5 %: the smallest p-values, until the first that is too large."""
    p_values = {method: crossed_p_value(x_SJ) for method, x_SJ in differences.items()}
    rejected: set[str] = set()
    for place, method in enumerate(sorted(p_values, key=lambda method: p_values[method] or 0.0)):
        if known(p_values[method]) >= 0.05 / (len(p_values) - place):
            break
        rejected.add(method)
    return rejected


def test_finding_sentences_by_loops(rights: dict[str, dict[int, np.ndarray]]) -> None:
    differences = differences_by_loop(rights, "Pass@2")
    rejected = significant_by_loop(differences)
    assert rejected == {"best", "better", "worse"}  # or the test would show little
    texts = {}
    for method, x_SJ in differences.items():
        texts[method] = format_estimate(difference_interval(x_SJ), "+")
    assert finding_sentences(table_of(made_up_frames(rights))) == [
        f"Pass@2 against grpo: best ({texts['best']}) and better ({texts['better']}) win; worse ({texts['worse']}) "
        "loses; no verdict on 1 of 4 methods."
    ]


def test_finding_sentences_on_the_baseline() -> None:
    frames = made_up_frames({"grpo": {seed: np.eye(6, 8, dtype=int) for seed in range(3)}})
    rows = leaderboard_rows(frames, "grpo", {"countdown": K})
    lost = Estimate(0.25, 0.125, 0.375)
    base = replace(
        rows[0],
        method="base model",
        avg_at_k=Estimate(0.1),
        pass_at_k={K: Estimate(0.5)},
        delta_pass_at_k={K: lost},
        delta_to_baseline=Estimate(-0.025, -0.05, 0.0),
    )
    of_base = [
        "Training with grpo: Pass@2 falls from 0.500 to 0.250; Avg@K rises from 0.100 to 0.125 (not significant).",
        "No method can be compared with the baseline yet.",
    ]
    assert finding_sentences(table_with(rows=[base, *rows])) == of_base
    of_one_seed = replace(base, avg_at_k=Estimate(0.125), delta_pass_at_k={K: Estimate(0.25)})
    sentence, _ = finding_sentences(table_with(rows=[of_one_seed, *rows]))
    assert sentence == (
        "Training with grpo: Pass@2 falls from 0.500 to 0.250 (without an interval); Avg@K stays at 0.125."
    )
    with_another_seed = replace(base, seeds_done=4, avg_at_k=Estimate(0.3), pass_at_k={K: Estimate(0.2)})
    # Paired, as the intervals are: on the seeds that the baseline has done.
    assert finding_sentences(table_with(rows=[with_another_seed, *rows])) == of_base


def test_forest_plot_has_the_numbers_of_compare(rights: dict[str, dict[int, np.ndarray]]) -> None:
    frames = made_up_frames(rights)
    drawn = known(forest_plot(table_of(frames)))
    assert [score["name"] for score in drawn["scores"]] == ["Pass@2", "Avg@K"]
    compared = {(one.score, one.method): one for one in comparisons(frames, "grpo", {"countdown": K})}
    means = differences_by_loop(rights, "Pass@2")
    assert [line["verdict"] for line in drawn["lines"]] == ["wins", "wins", "", "loses"]
    assert [line["method"] for line in drawn["lines"]] == sorted(means, key=lambda method: -means[method].mean())
    for line, (place, score) in itertools.product(drawn["lines"], enumerate(drawn["scores"])):
        cell, one = line["cells"][place], compared[score["name"], line["method"]]
        difference = known(one.difference)
        assert cell["value"] == difference.mean
        assert cell["text"] == format_estimate(difference, "+")
        assert cell["significant"] == (known(one.p_holm) < 0.05)
        # Places are a straight line through those of the axis's ticks.
        places = [(float(tick["text"]), tick["place"]) for tick in score["ticks"]]
        (first, at_first), *_, (last, at_last) = places
        for end in ("low", "mean", "high"):
            value = getattr(difference, end)
            expected = at_first + (value - first) / (last - first) * (at_last - at_first)
            assert cell[end] == pytest.approx(expected, abs=0.05)
            assert 0 <= cell[end] <= 100


def test_forest_plot_names_another_trainer() -> None:
    of_trl = replace(compared("clip_b", Estimate(0.1, 0.0, 0.2), 0.1), trainer="trl")
    drawn = known(forest_plot(table_with(of_trl, BASELINE)))
    assert [(line["method"], line["name"]) for line in drawn["lines"]] == [("clip_b", "clip_b (trained by trl)")]


def compared(method: str, difference: Estimate | None, p_holm: float | None, verdict: str = "") -> Comparison:
    return comparison(method, score="Pass@2", difference=difference, p_holm=p_holm, verdict=verdict)


UP, DOWN, TIE = Estimate(0.1, 0.05, 0.15), Estimate(-0.1, -0.15, -0.05), Estimate(0.01, -0.2, 0.22)
BASELINE = compared("grpo", None, None)


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ([], "No method can be compared with the baseline yet."),
        ([compared("a", UP, 0.01, "wins")], "Pass@2 against grpo: a (+0.100 ±0.050) wins."),
        (
            [compared("a", Estimate(0.2), None), compared("b", Estimate(0.3), None), compared("c", None, None)],
            "Pass@2 against grpo: no difference of 2 methods has an interval, so there is no verdict.",
        ),
        (
            [compared("a", TIE, 0.9), compared("b", UP, 0.06), compared("c", Estimate(0.0), None)],
            "Pass@2 against grpo: no method has a significant gain (Holm's correction for 2 methods, 5 %); the highest "
            "difference is b's (+0.100 ±0.050).",
        ),
        (
            [compared("a", TIE, 0.9), compared("b", UP, 0.04, "trades"), compared("base model", DOWN, 0.01)],
            "Pass@2 against grpo: b (+0.100 ±0.050) trades; no verdict on 1 of 2 methods.",
        ),
        (
            [compared("a", TIE, 0.9), compared("b", DOWN, 0.04, "loses")],
            "Pass@2 against grpo: b (-0.100 ±0.050) loses; no method has a significant gain (Holm's correction for 2 "
            "methods, 5 %); the highest difference is a's (+0.010 ±0.210).",
        ),
        (
            [compared("a", TIE, 0.9)],
            "Pass@2 against grpo: no method has a significant gain (Holm's correction for 1 method, 5 %); the highest "
            "difference is a's (+0.010 ±0.210).",
        ),
    ],
)
def test_finding_sentences_of_each_outcome(others: list[Comparison], sentence: str) -> None:
    assert finding_sentences(table_with(BASELINE, *others)) == [sentence]


def test_forest_plot_without_differences() -> None:
    assert forest_plot(table_with(BASELINE, compared("a", None, None))) is None


def test_colored_methods() -> None:
    class Content:
        baseline = "grpo"

    names = ["grpo", *(f"m{i}" for i in range(20)), "base model"]
    fronts = [["m3", "m7"], ["m7", "grpo"]]
    assert colored_methods(Content(), names, fronts) == ["grpo", "base model", "m3", "m7"]  # type: ignore[arg-type]
    assert colored_methods(Content(), names[:COLORS], fronts) == names[:COLORS]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (-0.26, 0.54, [-0.2, 0.0, 0.2, 0.4]),
        (-1.04, 1.04, [-1.0, 0.0, 1.0]),
        (-0.0042, 0.031, [0.0, 0.01, 0.02, 0.03]),
        (-0.45, 0.4, [-0.25, 0.0, 0.25]),
        (0.0, 7.0, [0.0, 2.0, 4.0, 6.0]),
        (-1.0, 1.0, [-1.0, 0.0, 1.0]),
    ],
)
def test_nice_ticks(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high, TICKS) == ticks


def test_nice_ticks_of_every_axis() -> None:
    drawn = np.random.default_rng(1)
    for low, size in zip(-drawn.random(500), 10 ** drawn.uniform(-4, 1, 500), strict=True):
        ticks = nice_ticks(low * size, (low + 1) * size, TICKS)
        assert 2 <= len(ticks) <= 4, (low, size)
        assert all(low * size <= tick <= (low + 1) * size for tick in ticks)


def test_front() -> None:
    drawn = np.random.default_rng(0)
    rounded = [(round(x, 1), round(y, 1)) for x, y in drawn.random((40, 2))]  # with many equal scores
    points = {f"m{i}": point for i, point in enumerate(2 * rounded)}
    series = [{"name": name, "x": [x], "y": [y]} for name, (x, y) in points.items()]
    series.append({"name": "base model", "x": [1.0], "y": [1.0]})
    beaten = set()
    for (name, (x, y)), (other_x, other_y) in itertools.product(points.items(), points.values()):
        if other_x >= x and other_y >= y and (other_x, other_y) != (x, y):
            beaten.add(name)
    front = scores.front_methods(series)
    assert {*front} == {*points} - beaten
    assert [points[name][0] for name in front] == sorted((points[name][0] for name in front), reverse=True)
