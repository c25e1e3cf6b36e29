"""Frames of made-up cells and answers, as they are read from MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas

from harness.table.board import NO_RUN
from harness.table.compare import Comparison
from harness.table.frames import AFTER, DONE, Answers, Frames, cells_frame
from harness.table.leaderboard import LeaderboardRow
from harness.table.statistics import Estimate


def made_up_frames(
    right: Mapping[str, Mapping[int, np.ndarray]],
    task: str = "countdown",
    trained_on: str = "countdown",
    *,
    problems: Sequence[str] | None = None,
    **columns: Mapping[tuple[str, int], Any],
) -> Frames:
    """Return frames of answers by method, seed, problem and sample; a method without seeds has one that is not done.

    `columns`: further columns of cells and of answers by method and seed, as `right_distinct` and `distinct`.
    """
    rows, answers = [], {}
    for method, by_seed in right.items():
        for seed in by_seed or (0,):
            cell = f"{method}-{seed}-{trained_on}"
            row = {"method": method, "task": trained_on, "model": "tiny", "setting": (), "seed": seed}
            row |= {"evaluated": task, "cell": cell, "moment": AFTER, "state": DONE if by_seed else NO_RUN}
            row |= {"entropy_first": 2.0, "entropy_last": 1.0}
            rows.append(row | {name: values.get((method, seed)) for name, values in columns.items()})
        for seed, right_JN in by_seed.items():
            names = problems or [f"{task} {i}" for i in range(len(right_JN))]
            unknown = [np.nan] * len(names)
            counts = {"right": right_JN.sum(axis=1), "samples": np.array([right_JN.shape[1]] * len(names))}
            for name in ("right_distinct", "solutions"):
                counts[name] = np.array(columns.get(name, {}).get((method, seed), unknown), dtype=float)
            answers[f"{method}-{seed}-{trained_on}", task, AFTER] = Answers(names, **counts)
    return Frames(cells_frame(rows), answers)


def joined_frames(*parts: Frames) -> Frames:
    answers = {key: of_cell for part in parts for key, of_cell in part.answers.items()}
    return Frames(pandas.concat([part.cells for part in parts], ignore_index=True), answers)


def comparison(method: str, **fields: Any) -> Comparison:
    """Return a comparison of three seeds with grpo, which has only the given numbers."""
    absent = dict.fromkeys(("mean", "iqm", "difference", "p", "p_holm", "improvement", "detectable"))
    absent |= dict.fromkeys(("rank_best", "rank_worst"))
    named = {"task": "countdown", "model": "tiny", "score": "Avg@K", "baseline": "grpo", "seeds": 3, "best": False}
    return Comparison(method=method, **{**absent, **named, **fields})


def leaderboard_row(method: str, k: int, score: Estimate | None, **fields: Any) -> LeaderboardRow:
    """Return a row with three of three seeds, of which each number but the given ones is this score."""
    passed = {} if score is None else {k: score}
    numbers = {"avg_at_k": score, "entropy_initial": score, "entropy_final": score, "delta_to_baseline": score}
    named = {"task": "countdown", "model": "tiny", "baseline": "grpo", "seeds_done": 3, "seeds_expected": 3}
    return LeaderboardRow(
        method=method, k=k, **{**numbers, "pass_at_k": passed, "delta_pass_at_k": passed, **named, **fields}
    )
