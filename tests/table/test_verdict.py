"""The verdict: exact for each pair of signs, the same in every form of a table, and corrected for all methods."""

import numpy as np
import pytest
from frames import made_up_frames

from harness.table.compare import comparisons
from harness.table.frames import BASE_MODEL
from harness.table.leaderboard import leaderboard_rows
from harness.table.scores import TableScores
from harness.table.verdict import significance, verdict


@pytest.mark.parametrize(
    ("headline", "average", "expected"),
    [
        (1, 1, "wins"),
        (1, 0, "wins"),
        (1, -1, "trades"),
        (0, 1, ""),
        (0, 0, ""),
        (0, -1, ""),
        (-1, 1, "loses"),
        (-1, -1, "loses"),
    ],
)
def test_verdict(headline: int, average: int, expected: str) -> None:
    assert verdict(headline, average) == expected


@pytest.mark.parametrize(
    ("difference", "p_holm", "expected"),
    [(0.1, 0.049, 1), (-0.1, 0.049, -1), (0.1, 0.05, 0), (-0.1, 0.05, 0), (0.1, None, 0)],
)
def test_significance_at_its_bound(difference: float, p_holm: float | None, expected: int) -> None:
    assert significance(difference, p_holm) == expected


def test_p_holm_leaves_the_base_model_out() -> None:
    scores = TableScores({}, "grpo")
    vars(scores)["p"] = {"a": 0.01, BASE_MODEL: 0.001, "b": 0.04}
    assert scores.p_holm == {"a": 0.02, "b": 0.04}


SEEDS, PROBLEMS, SAMPLES = range(6), 40, 8


def answers(solved: float, share: float) -> dict[int, np.ndarray]:
    """Return answers that solve a share of the problems, each with a share of the samples, by seed."""
    by_seed = {}
    for seed in SEEDS:
        random = np.random.default_rng([seed, int(1000 * solved), int(1000 * share)])
        is_solved = np.arange(PROBLEMS) < solved * PROBLEMS
        by_seed[seed] = (is_solved[:, None] & (random.random((PROBLEMS, SAMPLES)) < share)).astype(int)
    return by_seed


RIGHT = {
    "grpo": answers(0.5, 0.8),
    "winner": answers(0.9, 0.8),
    "trader": answers(1.0, 0.2),
    "loser": answers(0.2, 0.9),
    "same": answers(0.5, 0.79),
    "absent": {},
}
EXPECTED = {"grpo": "", "winner": "wins", "trader": "trades", "loser": "loses", "same": "", "absent": ""}


def test_verdicts_of_rows_and_comparisons() -> None:
    frames = made_up_frames(RIGHT)
    rows = leaderboard_rows(frames, "grpo", {"countdown": 8})
    assert {row.method: row.verdict for row in rows} == EXPECTED
    for comparison in comparisons(frames, "grpo", {"countdown": 8}):
        assert comparison.verdict == EXPECTED[comparison.method]


def test_verdicts_are_corrected_for_all_methods() -> None:
    """Of ten methods with the same gain, of which each alone is significant, none has a verdict."""
    random = np.random.default_rng(4)
    base = {seed: (random.random((12, 8)) < 0.3).astype(int) for seed in range(3)}
    better = {seed: base[seed] | (np.random.default_rng([seed, 2]).random((12, 8)) < 0.2) for seed in base}
    names = [f"method {number}" for number in range(10)]

    def verdict_of_first(methods: list[str]) -> str:
        right = {"grpo": base, **dict.fromkeys(methods, better)}
        rows = leaderboard_rows(made_up_frames(right), "grpo", {"countdown": 4})
        return next(row.verdict for row in rows if row.method == methods[0])

    assert verdict_of_first(names[:1]) == "wins"
    assert verdict_of_first(names) == ""
