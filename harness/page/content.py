"""Everything that the page shows of a matrix, and which of it is compared. Imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.statistics import pass_at_k
from harness.table.leaderboard import LeaderboardRow, place_text

Record = dict[str, Any]  # an evaluation, or a line of samples/evaluate-*.jsonl
RecordKey = tuple[str, str, str, str, int]  # method, task, model, setting, seed

JUDGING = "time/judging_s"  # is spent within other phases, and so belongs to no sum
QUESTIONS = 3  # problems whose answers are shown next to each other
FORMULA = 40  # characters of an answer that fits into a narrow column
ANSWERS = 16  # to a problem that are shown, of each method
LONGEST_ANSWER = 300  # characters; of a longer one the middle is left out


@dataclass(frozen=True)
class StepEvaluation:
    """The answers of a cell to one task after one step."""

    problems: list[str]
    right_JN: np.ndarray
    right_distinct_J: np.ndarray  # distinct right answers to each problem

    @property
    def right_distinct(self) -> float:
        """The mean number of distinct right answers to a problem."""
        return float(self.right_distinct_J.mean())

    @property
    def rates(self) -> dict[str, float]:
        """The share of right answers, by problem."""
        return dict(zip(self.problems, self.right_JN.mean(axis=1).tolist(), strict=True))

    def score(self, k: int | None) -> float:
        """Return the mean Avg@K (k is None) or Pass@k of the problems."""
        if k is None:
            return float(self.right_JN.mean())
        return float(pass_at_k(self.right_JN.shape[1], self.right_JN.sum(axis=1), k).mean())


@dataclass(frozen=True)
class CellRecord:
    """One cell of the matrix, with its records so far."""

    method: str
    task: str  # of the training
    model: str
    seed: int
    state: str
    setting: str = ""  # the values at the further axes of the matrix
    reason: str | None = None
    device: str = ""
    curves: dict[str, dict[int, float]] = field(default_factory=dict)  # value by metric and step
    evaluations: dict[str, dict[int, StepEvaluation]] = field(default_factory=dict)  # by task and step
    identity: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    times: tuple[float, float] | None = None  # of its first and its last record

    @property
    def key(self) -> RecordKey:
        return self.method, self.task, self.model, self.setting, self.seed

    @property
    def where(self) -> str:
        return place_text(self.model, self.setting)

    @property
    def step(self) -> int:
        return max((step for curve in self.curves.values() for step in curve), default=0)

    @property
    def seconds(self) -> float:
        """The seconds of work of the steps that count, without repeated steps and waiting."""
        phases = (curve for name, curve in self.curves.items() if name.startswith("time/") and name != JUDGING)
        return sum(sum(curve.values()) for curve in phases)

    def last(self, task: str) -> StepEvaluation:
        return self.evaluations[task][max(self.evaluations[task])]

    def before(self, task: str) -> StepEvaluation | None:
        """Return the evaluation of the model before any training."""
        return self.evaluations[task].get(0)

    @property
    def entropy(self) -> tuple[float, float] | None:
        """The entropy at the first and at the last training step."""
        curve = self.curves.get("entropy/mean")
        return (curve[min(curve)], curve[max(curve)]) if curve else None


@dataclass(frozen=True)
class ShownAnswer:
    """An answer as the page shows it, without its middle if it is long."""

    start: str
    left_out: int  # characters between start and end
    end: str
    verdict: str
    copy: bool  # an earlier answer has the same text


@dataclass(frozen=True)
class MethodAnswers:
    """The answers of one method to one problem; of the model before training, for which the method is None."""

    method: str | None
    shown: list[ShownAnswer]
    total: int
    distinct: int  # answers
    right_distinct: int  # right answers
    right: int


@dataclass(frozen=True)
class Question:
    """A problem with the answers of all methods."""

    problem: str
    prompt: str
    seed: int
    answers: list[MethodAnswers]

    @property
    def wide(self) -> bool:
        """True if the answers are text rather than formulas."""
        shown = itertools.chain(*(of_method.shown for of_method in self.answers))
        return any(len(answer.start) > FORMULA for answer in shown)


@dataclass(frozen=True)
class ScoreTable:
    """The rows of one evaluation task and one model, after training on one task, which may be compared."""

    title: str
    task: str  # of the evaluation
    rows: list[LeaderboardRow]
    cells: list[CellRecord]  # that are done
    questions: list[Question]

    @property
    def k(self) -> int:
        return self.rows[0].k


@dataclass(frozen=True)
class PageContent:
    """Everything that the page shows of a matrix."""

    name: str
    source: str  # the MLflow store
    command: str | None  # repeats the matrix; None if it is unknown
    baseline: str
    methods: list[str]
    settings: dict[str, Any]  # of the matrix
    rows: list[LeaderboardRow]
    cells: list[CellRecord]
    tables: list[ScoreTable]
    trainings: dict[str, list[CellRecord]]  # by training task and model, within which curves may share a figure
    notes: list[str] = field(default_factory=list)  # on everything that was left out


Samples = Callable[[CellRecord, str, int], list[Record]]  # of a cell, an evaluation task and a step


def assemble_content(
    cells: list[CellRecord],
    rows: list[LeaderboardRow],
    samples: Samples,
    **fields: Any,
) -> PageContent:
    done = [cell for cell in cells if cell.state == "done"]
    if all(cell.state == "planned" for cell in cells):
        raise UserError(f"no cell of {fields['name']!r} has begun yet; `entrobench run` runs them")
    trainings: dict[str, list[CellRecord]] = {}
    for cell in done:
        trainings.setdefault(f"{cell.task}, {cell.where}", []).append(cell)
    tables = []
    for label, where in dict.fromkeys((row.task, row.where) for row in rows):
        rows_of_table = [row for row in rows if (row.task, row.where) == (label, where)]
        behind, task = cells_behind(label, where, done)
        questions = chosen_questions(behind, task, samples) if behind else []
        tables.append(ScoreTable(f"{label}, {where}", task, rows_of_table, behind, questions))
    return PageContent(rows=rows, cells=cells, tables=tables, trainings=trainings, **fields)


def cells_behind(label: str, where: str, done: Sequence[CellRecord]) -> tuple[list[CellRecord], str]:
    """Return the cells behind the rows with a label, and the name of their evaluation task.

    The label is that name, with the training task where that varies.
    """
    pairs = []
    for cell in done:
        for task in cell.evaluations:
            if cell.where == where and label in (task, f"{task} (trained on {cell.task})"):
                pairs.append((cell, task))
    return [cell for cell, _ in pairs], pairs[0][1] if pairs else label


def chosen_questions(cells: Sequence[CellRecord], task: str, samples: Samples) -> list[Question]:
    """Return the problems on which methods differ most in their number of distinct answers.

    They come from the first seed that most methods have done, with the answers before training and after each method.
    """
    seeds = [cell.seed for cell in cells]
    seed = max(dict.fromkeys(sorted(seeds)), key=seeds.count)
    group = [cell for cell in cells if cell.seed == seed]
    records: dict[str | None, dict[str, Record]] = {}
    for cell in group:
        records[cell.method] = by_problem(samples(cell, task, max(cell.evaluations[task])))
    problems_of_all = set.intersection(*(set(of_method) for of_method in records.values()))
    shared = [problem for problem in group[0].last(task).problems if problem in problems_of_all]

    def difference(problem: str) -> int:
        numbers = [distinct_answers(of_method[problem]) for of_method in records.values()]
        return max(numbers) - min(numbers)

    chosen = sorted(shared, key=difference, reverse=True)[:QUESTIONS]  # ties: in the order of the problem set
    before = by_problem(samples(group[0], task, 0)) if group[0].before(task) is not None else {}
    questions = []
    for problem in chosen:
        prompt = records[group[0].method][problem]["prompt"]
        answers = []
        for method, of_method in [(None, before), *records.items()]:
            if problem in of_method:
                answers.append(method_answers(method, of_method[problem]))
        questions.append(Question(problem, prompt, seed, answers))
    return questions


def shortened(text: str) -> tuple[str, int, str]:
    """Return the beginning of a text, how many characters are left out, and the end; short texts are whole."""
    if len(text) <= LONGEST_ANSWER:
        return text, 0, ""
    half = LONGEST_ANSWER // 2
    return text[:half], len(text) - 2 * half, text[-half:]


def by_problem(records: Sequence[Record]) -> dict[str, Record]:
    return {record["problem"]: record for record in records}


def method_answers(method: str | None, record: Record) -> MethodAnswers:
    texts, verdicts = record["responses"], record["verdicts"]
    shown = []
    for place, (text, verdict) in enumerate(zip(texts[:ANSWERS], verdicts, strict=False)):
        shown.append(ShownAnswer(*shortened(text), verdict, text in texts[:place]))
    pairs = zip(record["answers"], verdicts, strict=True)
    right_answers = {answer for answer, verdict in pairs if verdict == "right"}
    right = sum(verdict == "right" for verdict in verdicts)
    return MethodAnswers(method, shown, len(texts), distinct_answers(record), len(right_answers), right)


def distinct_answers(record: Record) -> int:
    """Return the number of distinct answers to a problem; a response without one counts for none."""
    return len(set(record["answers"]) - {None})
