"""Cells with answers to real problems of the embedded task, judged by it, without any training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness.base import files
from harness.cells import checksums, evaluation_files
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.state import State
from harness.config import load_config
from harness.matrix import Cell, cells
from harness.packs.exchange import pack_matrix
from harness.statistics import pass_at_k
from tasks import Problem
from tasks.countdown import Countdown

SMALL = ["train.steps=1", "eval.problems=5", "eval.samples=4", "eval.k=2", "seeds=[0,1]"]
Records = dict[str, Any]


def responses_to(problem: Problem, seed: int) -> list[str]:
    """Return four responses: an expression that may be right, a wrong one, no box, and another try."""
    numbers = [int(text) for text in problem.prompt.rstrip().rstrip(":").partition("=")[0].split()]
    tries = [f"{numbers[0]}{one}{numbers[1]}{other}{numbers[2]}" for one in "+-*" for other in "+-*"]
    right = [f"\\boxed{{{each}}}" for each in tries if eval(each) == int(problem.prompt.partition("=")[2].strip(": "))]
    first = right[0] if right else "\\boxed{1}"
    return [first, f"\\boxed{{{tries[seed]}}}", "none", first]


def write_answers(cell: Cell, edit: Callable[[list[Records]], None] | None = None) -> None:
    """Leave a cell that is done; `edit` changes the samples before counts, scores and sums are computed from them."""
    task = Countdown()
    cell.spec.write(cell.folder)
    made = Made(cell.id, 1000.0, "0.1.0", None, None, cell.sources, {}, "a processor", "cpu", "b" * 64, "h" * 64)
    made.write(cell.folder)
    log = MetricsLog(cell.folder)
    for step in (0, 1):
        samples = []
        for problem in task.problems("test")[:5]:
            responses = responses_to(problem, cell.seed)
            pairs = [(problem, response) for response in responses]
            answers = [None if each is None else each.text for each in task.answers(pairs)]
            verdicts = [str(verdict) for verdict in task.verdicts(pairs, verifier=None)]  # type: ignore[arg-type]
            sample: Records = {"problem": problem.id, "prompt": problem.prompt, "responses": responses}
            samples.append({**sample, "answers": answers, "verdicts": verdicts})
        if edit is not None:
            edit(samples)
        right = [[int(verdict == "right") for verdict in sample["verdicts"]] for sample in samples]
        distinct = []
        for sample, row in zip(samples, right, strict=True):
            distinct.append(len({answer for answer, one in zip(sample["answers"], row, strict=True) if one}))
        counted = [task.solutions(problem) for problem in task.problems("test")[:5]]
        names = [sample["problem"] for sample in samples]
        record = {"task": "countdown", "step": step, "problems": names, "right": right, "flags": []}
        evaluation_files.write_evaluation(cell.folder, record | {"right_distinct": distinct, "solutions": counted})
        files.write_lines(cell.folder / "samples" / f"evaluate-countdown-{step:06d}.jsonl", samples)
        sums_J = np.array(right).sum(axis=1)
        metrics = {"eval/countdown/avg": float(sums_J.sum()) / 20, "entropy/mean": 2.0 - step}
        metrics["eval/countdown/pass@2"] = float(pass_at_k(4, sums_J, 2).mean())
        metrics |= {
            f"eval/countdown/{name}": 0.5 for name in ("length", "distinct", "distinct_answers", "after_answer")
        }
        log.append(step, 1000.0 + step, metrics | {"tokens/generated": 10.0})
    checksums.write_checksums(cell.folder)
    State("done", durable_step=1, seconds=60, device="cpu").write(cell.folder)


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
        write_answers(cell, edit if cell is matrix[-1] else None)
    if then is not None:
        then(matrix[-1])
    path = folder / "smoke.zip"
    pack_matrix(config, path)
    return path


def changed_made(cell: Cell, **fields: Any) -> None:
    """Change the record of what made a cell."""
    made = Made.read(cell.folder)
    assert made is not None
    dataclasses.replace(made, **fields).write(cell.folder)
