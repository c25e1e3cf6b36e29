"""The outcome of a cell as one small file: all that a table of many cells reads of each."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.cells import evaluation_files
from harness.cells.no_signal import why_no_signal
from harness.cells.spec import CellSpec
from harness.cells.state import State

FILE = "outcome.json"  # among the artifacts of its run
TAG = "outcome"  # of its run: the digest of the outcome


def cell_outcome(folder: Path, spec: CellSpec, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the outcome of a cell that is done."""
    entropies = curve(lines, "entropy/mean")
    first_and_last = [entropies[0], entropies[-1]] if entropies else None
    dropped = curve(lines, "weights/dropped")
    mean_dropped = statistics.fmean(dropped) if dropped else None
    tokens = hours = None  # of a training elsewhere nothing here has counted them
    if spec.trainer is None:
        tokens = sum(curve(lines, "tokens/generated"))
        hours = State.read(folder).seconds / 3600 * devices(spec, State.read(folder).device)
    outcome: dict[str, Any] = {
        "entropy": first_and_last,  # at the first and at the last training step
        "dropped": mean_dropped,  # share of tokens, mean over the steps
        "tokens": tokens,  # sampled while training
        "hours": hours,
        "tasks": evaluations(folder, spec, lines),
    }
    if why := why_no_signal(lines):  # absent otherwise, so that the digests of other outcomes stay as they were
        outcome["untrained"] = why
    return outcome


def devices(spec: CellSpec, device: str) -> float:
    """Return the number of GPUs of a cell, which may be a fraction; on a CPU, the number of its cores."""
    hardware = spec.config.hardware
    per_rank = hardware.share if device == "cuda" else hardware.threads
    return hardware.world * per_rank


def curve(lines: list[dict[str, Any]], key: str) -> list[float]:
    return [line["metrics"][key] for line in lines if key in line["metrics"]]


def evaluations(folder: Path, spec: CellSpec, lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the last evaluation of each task, with the answers before training (step 0) if it was evaluated then."""
    by_task: dict[str, dict[str, Any]] = {}
    logged = {line["step"]: line["metrics"] for line in lines}
    # In the order of steps, so that a later evaluation of a task replaces an earlier one.
    for path, record in evaluation_files.all_evaluations(folder):
        evaluation_files.check_scores(path, record, logged.get(record["step"], {}))
        task = record["task"]
        right, distinct = answers(record), right_distinct(record, path.name)
        before = by_task.get(task, {"before": None, "right_distinct_before": None})
        if record["step"] == 0:
            before = {"before": right, "right_distinct_before": distinct}
        by_task[task] = {
            "k": spec.config.eval.of(task).k,
            "problems": record["problems"],
            "right": right,
            "before": before["before"],
            "right_distinct": distinct,  # distinct right answers to each problem
            "right_distinct_before": before["right_distinct_before"],
            "solutions": record["solutions"],  # number of right answers of each problem, if the task can count them
            "flags": record["flags"],
        }
    for task, scores in by_task.items():
        for measure in ("length", "distinct", "distinct_answers", "after_answer"):
            values = curve(lines, f"eval/{task}/{measure}")
            scores[measure] = values[-1] if values else None
    return by_task


def right_distinct(record: Mapping[str, Any], name: str) -> list[int]:
    """Return the numbers of distinct right answers of an evaluation, or of one task in an outcome."""
    if "right_distinct" not in record:
        raise UserError(
            f"{name} has no right_distinct: an earlier version of entrobench made it, which did not count answers; "
            "run its cells again"
        )
    numbers: list[int] = record["right_distinct"]
    return numbers


def answers(record: dict[str, Any]) -> list[str]:
    """Return a text of 0 and 1 for each problem, one digit for each sample: 1 is right."""
    return ["".join(map(str, right)) for right in record["right"]]
