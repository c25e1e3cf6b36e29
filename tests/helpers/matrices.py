"""Matrices with made-up results, as their cells leave them and as MLflow holds them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cells import BEGAN, Answers, make_spec, write_cell

from harness.cells.spec import CellSpec
from harness.config import Config
from harness.table import board
from harness.table.board import Board, Expected
from harness.tracking import store, sync
from harness.tracking.artifacts import files_of_run

STEPS = 4
PROBLEMS = ["easy", "lost", "won", "never"]
SAMPLES = 4
SOLUTIONS = [4, 4, 8, 1]
MANY_PROBLEMS = [f"problem {i}" for i in range(40)]
FIFTY = ["grpo", *(f"method_{i}(an_option={i})" for i in range(1, 50))]
QUADRANTS = [f"{sign}_{side}" for sign in ("positive", "negative") for side in ("above", "below")]
HOSTILE = ["<script>alert(1)</script>", "$x^{$ %{y}", "größe-方法-🙂", '"quoted" & <b>bold</b>']
HOSTILE_TEXT = "</script><script>alert(2)</script><img src=x onerror=alert(3)> $x^{$ 漢字"


def specs(
    name: str, methods: Sequence[str], tasks: Sequence[str], models: Sequence[str], seeds: Sequence[int]
) -> list[CellSpec]:
    """Return the specs of a matrix's cells; unlike in a configuration, any name is allowed."""
    axes = {"methods": [*methods], "tasks": [*tasks], "models": [*models], "seeds": [*seeds]}
    config = Config(name=name, **axes, baseline=methods[0])  # type: ignore[arg-type]
    config.eval.k, config.eval.samples = 2, SAMPLES
    identity = {"method": [{"component": "Invented", "share": 0.02}], "train": {"lr": 0.1}}
    keys = itertools.product(seeds, tasks, models, methods)
    return [
        make_spec(method, seed, task, model, id=f"{number:012x}", matrix=name, identity=identity, config=config)
        for number, (seed, task, model, method) in enumerate(keys)
    ]


RightAt = Callable[[int, int, int], list[list[int]]]  # of a level, a seed and a step


def right_of(level: int, seed: int, step: int) -> list[list[int]]:
    """Return made-up verdicts on PROBLEMS: one always solved, one lost, one won, one never solved."""
    end = step == STEPS
    row = [int(sample <= level % 3 + seed % 2) for sample in range(SAMPLES)]
    return [[1] * SAMPLES, [0] * SAMPLES if end else row, row if end else [0] * SAMPLES, [0] * SAMPLES]


def ranked_right(level: int, seed: int, step: int) -> list[list[int]]:
    """Return made-up verdicts on MANY_PROBLEMS: each method has an ability, which only training brings out."""
    drawn = np.random.default_rng([level if step else 0, seed, step])
    difficulties = np.linspace(-2, 2, len(MANY_PROBLEMS))
    ability = 0.04 * (level % 50 - 20) * step / STEPS
    chances = 1 / (1 + np.exp(difficulties - ability))
    return [(drawn.random(SAMPLES) < chance).astype(int).tolist() for chance in chances]


def answers_of(level: int, problem: str) -> list[int]:
    """Return made-up answers: as many as there are samples, but for one problem where the level decides."""
    return [i % (level + 1) if problem == "won" else i for i in range(SAMPLES)]


def distinct_right(level: int, problem: str, right: Sequence[int]) -> int:
    answers = answers_of(level, problem)
    return len({answer for answer, one in zip(answers, right, strict=True) if one})


def metrics_of(level: int, seed: int, step: int) -> dict[str, float]:
    found = {
        "entropy/mean": 2.0 / step + 0.1 * level + 0.01 * seed,
        "reward/mean": 0.1 * step,
        "reward/groups_without_signal": 0.2,
        "responses/length": 10.0 + level,
        "responses/truncated": 0.0,
        "responses/distinct": 0.5,
        "responses/distinct_answers": 0.4,
        "responses/after_answer": 0.1,
        "entropy/answer": 1.5 / step + 0.1 * level + 0.01 * seed,
        "ratio/clipped_low": 0.01,
        "ratio/clipped_high": 0.02,
        "weights/dropped": 0.0,
        "weights/dropped_positive": 0.0,
        "weights/dropped_negative": 0.0,
        "time/rollout_s": 1.0 + level,
        "time/update_s": 2.0,
        "time/judging_s": 100.0,
    }
    for place, quadrant in enumerate(QUADRANTS):
        found |= {f"dynamics/{quadrant}/share": 0.1 * place, f"dynamics/{quadrant}/push": -0.01 * place}
    return found


def write_done(
    folder: Path,
    spec: CellSpec,
    level: int = 0,
    text: str = "answer",
    began: float = BEGAN,
    problems: Sequence[str] = PROBLEMS,
    right_at: RightAt = right_of,
) -> None:
    """Write the folder of a done cell; `level` makes its numbers differ from those of other methods."""
    steps = [{"time/evaluate_s": 0.5}, *(metrics_of(level, spec.key.seed, step) for step in range(1, STEPS + 1))]
    answers = []
    for step in (0, 2, STEPS):
        right = right_at(level, spec.key.seed, step)
        distinct = [distinct_right(level, problem, row) for problem, row in zip(problems, right, strict=True)]
        solutions = (SOLUTIONS * len(problems))[: len(problems)]
        samples = [sample_of(level, problem, row, text) for problem, row in zip(problems, right, strict=True)]
        answers.append(Answers(step, right, spec.key.task, problems, distinct, solutions, samples=samples))
    write_cell(folder, spec, steps=steps, answers=answers, began=began, pace=60.0)


def sample_of(level: int, problem: str, right: Sequence[int], text: str) -> dict[str, Any]:
    answers = [str(answer) for answer in answers_of(level, problem)]
    return {
        "problem": problem,
        "prompt": f"What of {problem}? {text}",
        "responses": [f"{text} {answer}" for answer in answers],
        "answers": answers,
        "verdicts": ["right" if one else "wrong" for one in right],
    }


def write_failed(folder: Path, spec: CellSpec, reason: str) -> None:
    """Write the folder of a cell that failed after its first step."""
    steps = [{"time/evaluate_s": 0.5}, metrics_of(9, spec.key.seed, 1)]
    write_cell(folder, spec, "failed", steps, reason=reason, pace=0.0)


def send_matrix(
    root: Path,
    uri: str,
    *,
    name: str = "matrix",
    methods: Sequence[str] = ("grpo", "clip_b"),
    tasks: Sequence[str] = ("countdown",),
    models: Sequence[str] = ("tiny",),
    seeds: Sequence[int] = (0, 1),
    failed: Sequence[tuple[str, int]] = (),
    text: str = "answer",
    summed_up: bool = True,
    **options: Any,
) -> list[CellSpec]:
    """Send a matrix to MLflow in which some methods and seeds failed; each task is evaluated separately.

    `summed_up`: the store has its summary, too. `options`: of `write_done`.
    """
    cells = specs(name, methods, tasks, models, seeds)
    for spec in cells:
        folder = root / spec.id
        if (spec.key.method, spec.key.seed) in failed:
            write_failed(folder, spec, f"out of memory {text}")
        else:
            write_done(folder, spec, [*methods].index(spec.key.method), text, **options)
        sync.sync(folder, uri)
    if summed_up:
        summarize(uri, cells)
    return cells


def summarize(uri: str, cells: Sequence[CellSpec]) -> None:
    """Write the summary of a matrix, as if its configuration expected these cells."""
    expected, key = [], cells[0].key
    for spec in cells:
        method, task, model, seed = (spec.key.factors()[axis] for axis in board.AXES)
        expected.append(Expected(method, task, [task], model, seed, spec.id, params=sync.params_of(spec)))
    ks = {cell.task: cells[0].config.eval.k for cell in expected}
    plan = Board(cells[0].matrix, key.method, ks, expected, cells[0].settings)
    with store.store(uri, write=True) as client:
        number = client.get_experiment_by_name(plan.experiment).experiment_id
        tags = {board.KIND: board.SUMMARY, board.KEY: plan.key}
        run = client.create_run(number, tags=tags, run_name="leaderboard")
        files_of_run(run.info.artifact_uri, uri).write(board.FILE, plan.as_json())


def values(figure: Any, key: str) -> dict[str, list[Any]]:
    """Return the numbers of each series, by name."""
    return {series["name"]: series[key] for series in figure.series}
