"""Cells with answers to real problems of the embedded task, judged by it, without any training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from cells import Answers, write_cell

from harness.cells import evaluation_files
from harness.cells.provenance import Made
from harness.config import load_config
from harness.matrix import Cell, cells
from harness.packs.exchange import pack_matrix
from tasks import Problem, Verdict
from tasks.countdown import Countdown
from tasks.scoring import distinct_right, judged, scores

SMALL = ["train.steps=1", "eval.problems=5", "eval.samples=4", "eval.k=2", "seeds=[0,1]"]
Records = dict[str, Any]


def responses_to(problem: Problem, seed: int) -> list[str]:
    """Return four responses: an expression that may be right, a wrong one, no box, and another try."""
    numbers = [int(text) for text in problem.prompt.rstrip().rstrip(":").partition("=")[0].split()]
    tries = [f"{numbers[0]}{one}{numbers[1]}{other}{numbers[2]}" for one in "+-*" for other in "+-*"]
    right = [f"\\boxed{{{each}}}" for each in tries if eval(each) == int(problem.prompt.partition("=")[2].strip(": "))]
    first = right[0] if right else "\\boxed{1}"
    return [first, f"\\boxed{{{tries[seed]}}}", "none", first]


def write_answered(cell: Cell, edit: Callable[[list[Records]], None] | None = None) -> None:
    """Write a cell that is done; `edit` changes the samples before counts, scores and sums are computed from them."""
    task, last = Countdown(), cell.config.train.steps
    steps, evaluations = [], []
    for step in range(last + 1):
        metrics = {"entropy/mean": 2.0 - step, "tokens/generated": 10.0, "loss/policy": 0.5}
        if evaluation_files.evaluation_due(cell.config, step, last):
            answers, scores = evaluation_of(cell, task, step, edit)
            evaluations.append(answers)
            metrics |= scores
        steps.append(metrics)
    made = {"base_model": "b" * 64, "harness": "h" * 64}
    write_cell(cell.folder, cell.spec, steps=steps, answers=evaluations, began=1000.0, made=made, seconds=60)


def evaluation_of(
    cell: Cell, task: Countdown, step: int, edit: Callable[[list[Records]], None] | None
) -> tuple[Answers, dict[str, float]]:
    """Return the evaluation of a step, and its metrics."""
    problems = task.problems("test")[:5]
    samples: list[Records] = []
    for problem in problems:
        responses = responses_to(problem, cell.seed)
        results = judged(task, None, problem, responses)  # type: ignore[arg-type]
        answers, verdicts = [result.text for result in results], [str(result.verdict) for result in results]
        sample: Records = {"problem": problem.id, "prompt": problem.prompt, "responses": responses}
        goes_on = [result.goes_on for result in results]
        samples.append({**sample, "answers": answers, "verdicts": verdicts, "goes_on": goes_on})
    if edit is not None:
        edit(samples)
    by_problem, right, distinct = [], [], []
    for problem, sample in zip(problems, samples, strict=True):
        judgments = list(map(Verdict, sample["verdicts"]))
        right.append([int(verdict == Verdict.RIGHT) for verdict in judgments])
        distinct.append(distinct_right(judgments, sample["answers"]))
        by_problem.append(
            scores(sample["responses"], judgments, sample["answers"], sample["goes_on"], task.solutions(problem))
        )
    metrics = {"avg": float(np.mean(right)), "length": 9.5, "distinct": 0.5}
    for key in by_problem[0].keys() - {"avg"}:
        metrics[key] = fmean(scores_of_problem[key] for scores_of_problem in by_problem)
    evaluation = Answers(
        step,
        right,
        problems=[sample["problem"] for sample in samples],
        distinct=distinct,
        solutions=list(map(task.solutions, problems)),
        flags=task.flags("countdown"),
        samples=samples,
    )
    return evaluation, {f"eval/countdown/{key}": score for key, score in metrics.items()}


def answered_pack(
    folder: Path,
    *overrides: str,
    edit: Callable[[list[Records]], None] | None = None,
    then: Callable[[Cell], None] | None = None,
) -> Path:
    """Write the pack of a small matrix; `edit`: of the samples of its last cell, `then`: called with that cell."""
    config = load_config("smoke", [f"results={folder / 'results'}", *SMALL, *overrides])
    matrix = cells(config)
    for cell in matrix:
        write_answered(cell, edit if cell is matrix[-1] else None)
    if then is not None:
        then(matrix[-1])
    path = folder / "smoke.zip"
    pack_matrix(config, path)
    return path


def change_made(cell: Cell, **fields: Any) -> None:
    """Change the record of what made a cell."""
    made = Made.read(cell.folder)
    assert made is not None
    dataclasses.replace(made, **fields).write(cell.folder)
