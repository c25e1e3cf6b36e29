"""The evaluations of a cell, one sealed file for each task and step, and its outcome: all that a table reads of it."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.base import files
from harness.base.errors import Damaged, UserError
from harness.cells.log import silent_end, why_no_signal
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.config import Config

FOLDER = "evals"
OUTCOME = "outcome.json"  # among the artifacts of its run
OUTCOME_TAG = "outcome"  # of its run: the digest of the outcome
DIGITS = 4  # of the digest of the answers to one problem: an accident passes one time in 65,536
# Of a score, relative: sums in another order differ by some 1e-16, one answer in a million changes 1e-6.
ROUNDING = 1e-9


def evaluation_due(config: Config, step: int, last_step: int) -> bool:
    """True if a cell is evaluated after this step."""
    every = config.eval.every
    return step in (0, last_step) or (every > 0 and step % every == 0)


def evaluation_path(folder: Path, task: str, step: int) -> Path:
    return folder / FOLDER / f"{task}-{step:06d}.json"


def answers_path(evaluation: Path) -> Path:
    """Return the file with the answers of an evaluation, by the file of that."""
    return evaluation.parents[1] / "samples" / f"evaluate-{evaluation.stem}.jsonl"


def write_evaluation(folder: Path, record: Mapping[str, Any]) -> None:
    files.write_sealed(evaluation_path(folder, record["task"], record["step"]), record)


def read_evaluation(path: Path) -> dict[str, Any]:
    """Return an evaluation; refuse one that was changed, or that lacks an answer."""
    record = files.read_sealed(path)
    if not isinstance(record, dict):
        raise Damaged(path, "it is not a mapping of keys")
    right, problems = record.get("right"), record.get("problems")
    if not right or not problems or len(right) != len(problems) or len({*map(len, right)}) != 1:
        raise Damaged(path, "it holds no answer of some problem")
    return record


def all_evaluations(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return all evaluations of a cell with their files, by task and then by step."""
    paths = sorted((folder / FOLDER).glob("*.json"))  # names end in the step with leading zeros: 000020.json
    return [(path, read_evaluation(path)) for path in paths]


def check_scores(path: Path, record: Mapping[str, Any], logged: Mapping[str, float]) -> None:
    """Refuse an evaluation whose answers give other scores than metrics.jsonl has for its step."""
    for difference in score_differences(record, scores_of_counts(record), logged):
        raise Damaged(path, difference)


def score_differences(
    record: Mapping[str, Any], scores: Mapping[str, float], logged: Mapping[str, float]
) -> Iterator[str]:
    """Yield the differences between scores of an evaluation and the logged ones, as sentences."""
    for key, score in scores.items():
        name = f"eval/{record['task']}/{key}"
        value = logged.get(name, score)
        if not math.isclose(score, value, rel_tol=ROUNDING, abs_tol=ROUNDING):
            yield f"its answers give {name} = {score:.6g}, and metrics.jsonl has {value:.6g}"


def scores_of_counts(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores that follow from the counts of an evaluation."""
    right_JN = np.array(record["right"])
    right_J, samples = right_JN.sum(axis=1), right_JN.shape[1]
    scores = {"avg": float(np.mean(right_J / samples))}
    scores |= {f"pass@{k}": float(np.mean(pass_at_k(samples, right_J, k))) for k in powers_of_two(samples)}
    if "right_distinct" in record:  # which evaluations of earlier versions lack
        distinct_J = np.array(record["right_distinct"])
        scores["right_distinct"] = float(distinct_J.mean())
        if record["solutions"]:
            scores["coverage"] = float(np.mean(distinct_J / np.array(record["solutions"])))
    return scores


def powers_of_two(highest: int) -> list[int]:
    """Return the powers of two from 1 up to a number."""
    return [2**i for i in range(highest.bit_length())]


def named_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of an evaluation by the names under which a cell logs them."""
    return {f"eval/{record['task']}/{key}": value for key, value in record["metrics"].items()}


def answers_sha256(evaluation: Path, record: Mapping[str, Any]) -> str:
    """Return the digest of all answers of an evaluation; empty if they were left out without one."""
    digest = record.get("answers") or stored_answers_digest(evaluation)
    return str(digest["sha256"]) if digest else ""


def stored_answers_digest(evaluation: Path) -> dict[str, Any] | None:
    """Return the digest of all answers of an evaluation, by its file, and the first digits of those of each problem.

    None if the answers were left out.
    """
    path = answers_path(evaluation)
    if not path.exists():
        return None
    samples = files.stream_lines(path)
    texts = (json.dumps([sample["problem"], sample["prompt"], sample["responses"]]) for sample in samples)
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    together = hashlib.sha256("".join(digests).encode()).hexdigest()
    return {"sha256": together, "problems": "".join(digest[:DIGITS] for digest in digests)}


# The outcome


def cell_outcome(folder: Path, spec: CellSpec, lines: list[dict[str, Any]]) -> dict[str, Any]:
    entropies, dropped = curve(lines, "entropy/mean"), curve(lines, "weights/dropped")
    tokens = hours = None  # of a training elsewhere nothing here has counted them
    if spec.trainer is None:
        tokens = sum(curve(lines, "tokens/generated"))
        state, hardware = State.read(folder), spec.config.hardware
        per_rank = hardware.share if state.device == "cuda" else hardware.threads  # of a GPU, or cores of a CPU
        hours = state.seconds / 3600 * (hardware.world * per_rank)
    outcome: dict[str, Any] = {
        "entropy": [entropies[0], entropies[-1]] if entropies else None,  # at the first and at the last training step
        "dropped": statistics.fmean(dropped) if dropped else None,  # share of tokens, mean over the steps
        "tokens": tokens,  # sampled while training
        "hours": hours,
        "tasks": last_evaluations(folder, spec, lines),
    }
    # Both are absent otherwise, so that the digests of other outcomes stay as they were.
    if why := why_no_signal(lines, responses_of_step(spec)):
        outcome["untrained"] = why
    if ended := silent_end(lines, spec.config.stop):
        outcome["ended"] = ended
    return outcome


def responses_of_step(spec: CellSpec) -> int:
    """Return the number of responses that a training step of a cell learns from; 0 if it was trained elsewhere."""
    return 0 if spec.trainer is not None else spec.config.train.prompts * spec.config.train.group


def curve(lines: list[dict[str, Any]], key: str) -> list[float]:
    return [line["metrics"][key] for line in lines if key in line["metrics"]]


def last_evaluations(folder: Path, spec: CellSpec, lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the last evaluation of each task, with the answers before training (step 0) if it was evaluated then."""
    by_task: dict[str, dict[str, Any]] = {}
    logged = {line["step"]: line["metrics"] for line in lines}
    # In the order of steps, so that a later evaluation of a task replaces an earlier one.
    for path, record in all_evaluations(folder):
        check_scores(path, record, logged.get(record["step"], {}))
        task = record["task"]
        right = ["".join(map(str, of_problem)) for of_problem in record["right"]]  # a digit for each sample: 1 is right
        distinct = right_distinct(record, path.name)
        before = by_task.get(task, {})
        if record["step"] == 0:
            before = {"before": right, "right_distinct_before": distinct}
        by_task[task] = {
            "k": spec.config.eval.of(task).k,
            "problems": record["problems"],
            "right": right,
            "before": before.get("before"),
            "right_distinct": distinct,  # distinct right answers to each problem
            "right_distinct_before": before.get("right_distinct_before"),
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


def pass_at_k(n: int, right: int | NDArray[np.integer[Any]], k: int) -> NDArray[np.float64]:
    """Return the chance that k of n samples, drawn without replacement, contain a right one.

    `right` is the number c of right samples, or an array of such numbers. The chance is 1 - C(n-c, k) / C(n, k). The
    quotient is the product of the c factors (n-k-i) / (n-i), in which no binomial coefficient grows large.
    """
    assert 1 <= k <= n, f"Pass@{k} of {n} samples"
    return 1 - none_right(n, k)[right]


@functools.cache
def none_right(n: int, k: int) -> NDArray[np.float64]:
    """Return the chance that none of k of n samples is right, by the number of right ones."""
    # The factors do not depend on c: the products of the first c of them are the chances for all c at once.
    i = np.arange(n)
    return np.concatenate([[1.0], np.cumprod(np.maximum(n - k - i, 0) / (n - i))])
