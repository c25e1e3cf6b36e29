"""The functions that the lm-eval files of the tasks name: the problems of a split, and the score of the responses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import tasks
from harness.statistics import pass_at_k
from tasks.task import SPLITS, Problem, Task, Verdict

if TYPE_CHECKING:
    from datasets import Dataset


@cache
def task_of(spec: str) -> Task:
    return tasks.build(spec)


def dataset(spec: str, splits: Sequence[str] = SPLITS, **_: Any) -> dict[str, Dataset]:
    """The problems of a task by split. lm-eval hands over all of the YAML's metadata, of which the rest is its own."""
    from datasets import Dataset

    task = task_of(spec)
    return {
        split: Dataset.from_list([{"spec": spec, **vars(problem)} for problem in task.problems(split)])
        for split in splits
    }


def score(doc: dict[str, str], results: list[list[str]]) -> dict[str, Any]:
    """The verdicts on all responses to a problem, under the name of the average; and Pass@k for powers of two."""
    problem = Problem(doc["id"], doc["prompt"], doc["answer"])
    (responses,) = results
    verdicts = [str(task_of(doc["spec"]).verdict(problem, response)) for response in responses]
    right = verdicts.count(Verdict.RIGHT)
    return {
        "avg": verdicts,
        **{f"pass@{k}": float(pass_at_k(len(verdicts), right, k)) for k in powers_of_two(len(verdicts))},
    }


def share_right(verdicts: list[list[str]]) -> float:
    """Over all problems: the aggregation of `avg`."""
    return sum(row.count(Verdict.RIGHT) for row in verdicts) / sum(map(len, verdicts))


def powers_of_two(highest: int) -> list[int]:
    return [2**i for i in range(highest.bit_length())]


def metric_list(samples: int) -> list[dict[str, Any]]:
    """What `score` returns for so many samples, in lm-eval's terms."""
    passes = [{"metric": f"pass@{k}", "aggregation": "mean", "higher_is_better": True} for k in powers_of_two(samples)]
    return [{"metric": "avg", "aggregation": share_right, "higher_is_better": True}, *passes]
