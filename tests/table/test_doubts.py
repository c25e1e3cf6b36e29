"""Notes and marks on intervals that are hard to compute: near 0 or 1, with two seeds, at the ends of shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from frames import made_up_frames

from harness.page import page
from harness.page.content import PageContent, page_cells
from harness.page.finding import general_sentences
from harness.table import compare, leaderboard, render
from harness.table.columns import format_estimate, table_lines
from harness.table.compare import comparisons
from harness.table.frames import Frames
from harness.table.leaderboard import LeaderboardRow
from harness.table.statistics import Estimate

SAMPLES = 8


def draw(method: str, shares: Sequence[float], problems: int = 12) -> dict[int, np.ndarray]:
    """Return the answers of a method by seed, one for each share of right ones."""
    right = {}
    for seed, share in enumerate(shares):
        random = np.random.default_rng([seed, *method.encode()])
        right[seed] = (random.random((problems, SAMPLES)) < share).astype(int)
    return right


def avg(right: dict[int, np.ndarray]) -> np.ndarray:
    """Return Avg@K by seed and problem, by loops."""
    return np.array([[sum(row) / SAMPLES for row in right[seed].tolist()] for seed in right])


def rows(frames: Frames) -> list[LeaderboardRow]:
    return leaderboard.leaderboard_rows(frames, "grpo", {"countdown": 4})


@pytest.mark.parametrize(("seeds", "sentence"), [(1, "There is one seed."), (2, "There are two seeds,"), (3, None)])
def test_general_sentences_on_few_seeds(seeds: int, sentence: str | None) -> None:
    cells = page_cells({"seed": seed, "state": "done"} for seed in range(seeds))
    sentences = general_sentences(cast(PageContent, SimpleNamespace(cells=cells, rows=[], notes=[])))
    assert [text.startswith(sentence) for text in sentences[1:] if sentence] == [True] * (seeds < 3)
    assert len(sentences) == 1 + (seeds < 3)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_note_on_two_seeds(seeds: int) -> None:
    frames = made_up_frames({"grpo": draw("grpo", [0.3] * seeds), "clip_b": draw("clip_b", [0.6] * seeds)})
    compared = comparisons(frames, "grpo", {"countdown": 4})
    for notes, advised in ((render.row_notes(rows(frames)), True), (compare.comparison_notes(compared), False)):
        on_two = [note for note in notes if note.startswith(render.TWO_SEEDS)]
        assert ["--compare" in note for note in on_two] == [advised] * (seeds == 2)


def test_near_bound_mark() -> None:
    shares = {"grpo": 0.97, "clip_b": 0.9, "ppo": 0.5}
    right = {method: draw(method, [share] * 3) for method, share in shares.items()}
    _, near, far = right.values()
    frames = made_up_frames(right)
    board = rows(frames)
    assert avg(near).mean() > 1 - 3 / 12 > avg(far).mean(), "three of twelve problems away from 1"
    assert [row.near_bound for row in board] == [[], ["Avg@K", "Pass@4"], ["Pass@4"]]
    header, _, line, other = table_lines(board)
    assert " ‡" in line[header.index("Avg@K - grpo")]
    assert "‡" not in other[header.index("Avg@K - grpo")]
    assert any(text.startswith("‡: the method and grpo both") for text in render.row_notes(board))
    assert not any("‡" in text for text in render.row_notes([board[0]]))
    compared = comparisons(frames, "grpo", {"countdown": 4})
    assert [each.near_bound for each in compared] == [False, True, False, False, True, True]
    assert " ‡ |" in compare.render_comparisons(compared, "md").splitlines()[5]
    assert any(text.startswith("‡") for text in compare.comparison_notes(compared))
    of_one_seed = made_up_frames({method: {0: by_seed[0]} for method, by_seed in right.items()})
    assert [row.near_bound for row in rows(of_one_seed)] == [[], [], []], "there is no interval to be doubted"


def test_near_bound_mark_precedes_the_sign() -> None:
    apart = Estimate(0.125, 0.0625, 0.1875)
    row = rows(made_up_frames({"grpo": draw("grpo", [0.5] * 3), "clip_b": draw("clip_b", [0.6] * 3)}))[1]
    row = dataclasses.replace(row, delta_to_baseline=apart, delta_pass_at_k={4: apart}, near_bound=["Pass@4"])
    header, line = table_lines([row])
    assert line[header.index("Avg@K - grpo")] == "+0.125 ±0.062 ▲"
    assert line[header.index("Pass@4 - grpo")] == "+0.125 ±0.062 ‡ ▲"
    assert page.table_cell(line[header.index("Pass@4 - grpo")])["mark"] == "▲"


@pytest.mark.parametrize("share", [0.02, 0.4, 1.0])
def test_intervals_of_shares_stay_in_0_to_1(share: float) -> None:
    right = {"grpo": draw("grpo", [share, min(1, 3 * share)]), "clip_b": draw("clip_b", [share] * 2)}
    distinct = {("grpo", 0): 0.25, ("grpo", 1): 0.724, ("clip_b", 0): 0.5, ("clip_b", 1): 0.5}
    unlike = made_up_frames(right, distinct=distinct)
    board = rows(unlike)
    assert board[0].distinct == Estimate((0.25 + 0.724) / 2, 0, 1)
    assert format_estimate(board[0].distinct) == "0.487 [0.000, 1.000]"
    compared = comparisons(unlike, "grpo", {"countdown": 4})
    shares = [row.avg_at_k for row in board] + [estimate for row in board for estimate in row.pass_at_k.values()]
    shares += [each for one in compared for each in (one.mean, one.iqm, one.improvement)]
    for each in filter(None, shares):
        assert each.low is None or each.high is None or 0 <= each.low <= each.mean <= each.high <= 1
    for each in filter(None, [row.delta_to_baseline for row in board]):
        assert each.low is None or each.high is None or -1 <= each.low <= each.mean <= each.high <= 1
