"""The evaluations of a cell: one sealed file for each task and step, whose scores follow from its answers."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.base import files, seal
from harness.base.errors import Damaged
from harness.config import Config
from harness.statistics import pass_at_k

FOLDER = "evals"
PASS = re.compile(r"pass@(\d+)")
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
    """Write the evaluation of a cell on one task at one step."""
    text = json.dumps(record, allow_nan=False)
    files.write_text(evaluation_path(folder, record["task"], record["step"]), seal.close_json(text))


def read_evaluation(path: Path) -> dict[str, Any]:
    """Return an evaluation; refuse one that was changed, or that lacks an answer."""
    try:
        content = files.read_bytes(path)
    except FileNotFoundError:
        raise Damaged(path, "it is missing") from None
    try:
        record = json.loads(seal.open_json(content, path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(path, f"it is not JSON ({error})") from error
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
    right_JN = np.array(record["right"])
    right_J, samples = right_JN.sum(axis=1), right_JN.shape[1]
    for key, value in logged.items():
        if not key.startswith("eval/"):
            continue
        _, task, *rest = key.split("/")
        name = rest[0] if rest else ""
        if task != record["task"]:
            continue
        if name == "avg":
            score = float(np.mean(right_J / samples))
        elif match := PASS.fullmatch(name):
            score = float(np.mean(pass_at_k(samples, right_J, int(match[1]))))
        else:
            continue
        if not math.isclose(score, value, rel_tol=ROUNDING, abs_tol=ROUNDING):
            raise Damaged(path, f"its answers give {key} = {score:.6g}, and metrics.jsonl has {value:.6g}")


def stored_answers_digest(evaluation: Path) -> dict[str, Any] | None:
    """Return the digests of the answers of an evaluation, by its file; None if they were left out."""
    path = answers_path(evaluation)
    return answers_digest(files.stream_lines(path)) if path.exists() else None


def answers_digest(samples: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return digests of the answers of an evaluation: of all, and the first digits of that of each problem."""
    digests = []
    for sample in samples:
        text = json.dumps([sample["problem"], sample["prompt"], sample["responses"]])
        digests.append(hashlib.sha256(text.encode()).hexdigest())
    together = hashlib.sha256("".join(digests).encode()).hexdigest()
    return {"sha256": together, "problems": "".join(digest[:DIGITS] for digest in digests)}
