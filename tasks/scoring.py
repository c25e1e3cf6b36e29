"""Functions named in the tasks' lm-eval files: the problems of a split, and the scores of responses."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from numbers import Integral
from typing import TYPE_CHECKING, Any

import tasks
from harness.base.errors import UserError, shown
from harness.base.task import Countable, Judged, Problem, Task, Verdict, Verifier, judge_responses
from harness.cells.evaluations import pass_at_k, powers_of_two
from harness.verify import pool

if TYPE_CHECKING:
    from datasets import Dataset


# For lm-eval's own command, which identifies a task by its spec


@cache
def task_of(spec: str) -> Task:
    return tasks.build_task(spec)


def dataset(spec: str, **_: Any) -> dict[str, Dataset]:
    """Return the splits to evaluate on, and the worked examples of the task as one named `shots`.

    lm-eval passes all metadata of the YAML file; only the spec is used here.
    """
    task = task_of(spec)
    splits = {split: task.problems(split) for split in task.splits if split != "train"}
    asked = next(iter(splits.values()))[0]  # all problems of a task have the same shots
    splits["shots"] = [Problem(prompt, prompt, response) for prompt, response in asked.shots]
    return {split: dataset_of(problems, spec=spec) for split, problems in splits.items()}


@cache
def verifier() -> Verifier:
    """Return the verifier of lm-eval's command, closed at exit because no code of ours owns it there."""
    verifier_pool = pool.VerifierPool()
    atexit.register(verifier_pool.close)
    return verifier_pool


def score(doc: dict[str, str], results: list[list[str]]) -> dict[str, Any]:
    """Return the scores of all responses to one problem, as lm-eval's `process_results`."""
    (responses,) = results
    task = task_of(doc["spec"])
    problem = problem_of(doc)
    results_judged = judged(task, verifier(), problem, responses)
    verdicts = [result.verdict for result in results_judged]
    answers = [result.text for result in results_judged]
    goes_on = [result.goes_on for result in results_judged]
    return scores(responses, verdicts, answers, goes_on, solutions(task, problem))


def problem_of(doc: Mapping[str, str]) -> Problem:
    return Problem(doc["id"], doc["prompt"], doc["answer"])


# For lm-eval and the trainer


def dataset_of(problems: Sequence[Problem], **more: str) -> Dataset:
    from datasets import Dataset

    rows = [{"id": problem.id, "prompt": problem.prompt, "answer": problem.answer, **more} for problem in problems]
    return Dataset.from_list(rows)


def judged(task: Task, verifier: Verifier, problem: Problem, responses: Sequence[str]) -> list[Judged]:
    """Judge all responses to a problem.

    Equal responses are judged once: for easy problems, most responses are equal.
    """
    distinct = list(dict.fromkeys(responses))
    results = judge_responses(task, verifier, [(problem, response) for response in distinct])
    by_response = dict(zip(distinct, results, strict=True))
    return [by_response[response] for response in responses]


def distinct_right(verdicts: Sequence[str], answers: Sequence[str | None]) -> int:
    """Return the number of distinct right answers among the responses to one problem."""
    right = set()
    for verdict, answer in zip(verdicts, answers, strict=True):
        if verdict == Verdict.RIGHT and answer is not None:
            right.add(answer)
    return len(right)


def solutions(task: Task, problem: Problem) -> int | None:
    """Return the number of right answers to a problem; None if the task cannot count them."""
    if not isinstance(task, Countable):
        return None
    number: Any = task.solutions(problem)  # a plugin's may be anything
    if not isinstance(number, Integral) or number < 1:
        raise UserError(
            f"task {task.name} counts {shown(number)} solutions of {shown(problem.id)}; allowed: whole numbers from 1"
        )
    return int(number)


def scores(
    responses: Sequence[str],
    verdicts: Sequence[Verdict],
    answers: Sequence[str | None],
    goes_on: Sequence[bool],
    right_answers: int | None,
) -> dict[str, Any]:
    """Return the metrics of all responses to one problem, with their verdicts as `avg`.

    `right_answers` is the number of right answers to the problem; None if the task cannot count them.
    """
    number = len(verdicts)
    distinct_answers = set(answers) - {None}
    right_distinct = distinct_right(verdicts, answers)
    coverage = {} if right_answers is None else {"coverage": right_distinct / right_answers}
    return {
        "avg": [str(verdict) for verdict in verdicts],
        **passes(number, verdicts.count(Verdict.RIGHT)),
        f"maj@{number}": majority(answers, verdicts),
        "right_distinct": right_distinct,
        "distinct_answers": len(distinct_answers) / number,
        **coverage,
        "after_answer": sum(goes_on) / number,
        "unparsed": verdicts.count(Verdict.UNPARSED) / number,
        "characters": sum(map(len, responses)) / number,
    }


@cache
def passes(number: int, right: int) -> dict[str, float]:
    return {f"pass@{k}": float(pass_at_k(number, right, k)) for k in powers_of_two(number)}


def share_right(verdicts: list[list[str]]) -> float:
    """Return the share of right responses over all problems: the aggregation of `avg`."""
    return sum(row.count(Verdict.RIGHT) for row in verdicts) / sum(map(len, verdicts))


def majority(votes: Sequence[str | None], verdicts: Sequence[Verdict]) -> float:
    """Return 1 if the most frequent answer is right, else 0; in a tie, the share of right answers among the leaders.

    Different spellings are different answers. Verdicts must not join them: if right answers were counted by value and
    wrong ones by spelling, right answers would win more often.
    """
    counts = Counter(vote for vote in votes if vote is not None)
    if not counts:
        return 0.0
    most = max(counts.values())
    leaders = {vote for vote, count in counts.items() if count == most}
    right = {vote for vote, verdict in zip(votes, verdicts, strict=True) if verdict == Verdict.RIGHT}
    return len(leaders & right) / len(leaders)


def metric_list(samples: int, *, countable: bool) -> list[dict[str, Any]]:
    """Return the metrics of `scores` for a number of samples, as the metric_list of an lm-eval file."""
    better = [f"pass@{k}" for k in powers_of_two(samples)]
    better += [f"maj@{samples}", "right_distinct", "distinct_answers"]
    if countable:
        better.append("coverage")
    entries: list[dict[str, Any]] = [{"metric": "avg", "aggregation": share_right, "higher_is_better": True}]
    for name in better:
        entries.append({"metric": name, "aggregation": "mean", "higher_is_better": True})
    for name in ("after_answer", "unparsed", "characters"):
        entries.append({"metric": name, "aggregation": "mean", "higher_is_better": False})
    return entries
