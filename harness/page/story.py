"""All that the page shows of a matrix, and which of it is compared. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.statistics import pass_at_k
from harness.table.leaderboard import Row

Record = dict[str, Any]  # an evaluation, or a line of samples/evaluate-*.jsonl
Axes = tuple[str, str, str, str, int]  # method, task, model, setting, seed

INSIDE = "time/judging_s"  # is spent within other phases, and so belongs to no sum
QUESTIONS = 3  # problems whose answers are shown side by side
FORMULA = 40  # characters of an answer that fits into a narrow column
ANSWERS = 16  # to a problem that are shown, of each method
LONGEST_ANSWER = 300  # characters; of a longer one the middle is left out


@dataclass(frozen=True)
class Evaluation:
    problems: list[str]
    right_JN: np.ndarray
    right_distinct_J: np.ndarray  # distinct right answers to each problem

    @property
    def right_distinct(self) -> float:
        """The mean number of distinct right answers to a problem."""
        return float(self.right_distinct_J.mean())

    @property
    def rates(self) -> dict[str, float]:
        """Returns the share of right answers, by problem."""
        return dict(zip(self.problems, self.right_JN.mean(axis=1).tolist(), strict=True))

    def score(self, k: int | None) -> float:
        """Returns the mean Avg@K (k is None) or Pass@k of the problems."""
        if k is None:
            return float(self.right_JN.mean())
        return float(pass_at_k(self.right_JN.shape[1], self.right_JN.sum(axis=1), k).mean())


@dataclass(frozen=True)
class Told:
    """One cell of the matrix, and what it has recorded so far."""

    method: str
    task: str  # that is trained on
    model: str
    seed: int
    state: str
    setting: str = ""  # the values at the further axes of the matrix
    reason: str | None = None
    device: str = ""
    curves: dict[str, dict[int, float]] = field(default_factory=dict)  # value by metric and step
    evaluations: dict[str, dict[int, Evaluation]] = field(default_factory=dict)  # by task and step
    identity: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    times: tuple[float, float] | None = None  # of its first and its last record

    @property
    def axes(self) -> Axes:
        return self.method, self.task, self.model, self.setting, self.seed

    @property
    def where(self) -> str:
        return ", ".join(filter(None, (self.model, self.setting)))

    @property
    def step(self) -> int:
        return max((step for curve in self.curves.values() for step in curve), default=0)

    @property
    def seconds(self) -> float:
        """Returns the seconds of work of the steps that count, whatever was done twice or waited for."""
        phases = (curve for name, curve in self.curves.items() if name.startswith("time/") and name != INSIDE)
        return sum(sum(curve.values()) for curve in phases)

    def last(self, task: str) -> Evaluation:
        return self.evaluations[task][max(self.evaluations[task])]

    def before(self, task: str) -> Evaluation | None:
        """Returns the evaluation of the model that nothing has trained yet."""
        return self.evaluations[task].get(0)

    @property
    def entropy(self) -> tuple[float, float] | None:
        """Returns the entropy at the first and at the last training step."""
        curve = self.curves.get("entropy/mean")
        return (curve[min(curve)], curve[max(curve)]) if curve else None


@dataclass(frozen=True)
class Answer:
    start: str
    left_out: int  # characters between the two
    end: str
    verdict: str
    copy: bool  # the same text stands above it


@dataclass(frozen=True)
class Answers:
    """To one problem, of one method; or of the model before training, for which the method is None."""

    method: str | None
    shown: list[Answer]
    total: int
    distinct: int  # answers
    right_distinct: int  # right answers
    right: int


@dataclass(frozen=True)
class Question:
    problem: str
    prompt: str
    seed: int
    answers: list[Answers]

    @property
    def wide(self) -> bool:
        """Returns whether its answers are text rather than formulas."""
        return any(len(answer.start) > FORMULA for each in self.answers for answer in each.shown)


@dataclass(frozen=True)
class Board:
    """One evaluation task and one model, after training on one task: the rows that may be compared."""

    title: str
    task: str  # of the evaluation
    rows: list[Row]
    cells: list[Told]  # that are done
    questions: list[Question]

    @property
    def k(self) -> int:
        return self.rows[0].k


@dataclass(frozen=True)
class Training:
    """One training task and one model, whose curves may share a figure."""

    title: str
    cells: list[Told]  # that are done


@dataclass(frozen=True)
class Story:
    name: str
    source: str  # where it was read
    command: str | None  # that repeats it; None where only the configuration is known
    baseline: str
    methods: list[str]
    settings: dict[str, Any]  # of the matrix
    rows: list[Row]
    cells: list[Told]
    boards: list[Board]
    trainings: list[Training]
    notes: list[str] = field(default_factory=list)  # on what was left out


def assembled(
    cells: list[Told],
    rows: list[Row],
    samples: Callable[[Told, str, int], list[Record]],
    **given: Any,
) -> Story:
    done = [cell for cell in cells if cell.state == "done"]
    if all(cell.state == "planned" for cell in cells):
        raise UserError(f"no cell of {given['name']!r} has begun yet; `entrobench run` runs them")
    trainings = [
        Training(f"{task}, {where}", [cell for cell in done if (cell.task, cell.where) == (task, where)])
        for task, where in dict.fromkeys((cell.task, cell.where) for cell in done)
    ]
    boards = []
    for label, where in dict.fromkeys((row.task, row.where) for row in rows):
        own = [row for row in rows if (row.task, row.where) == (label, where)]
        theirs, task = cells_behind(label, where, done)
        chosen = questions(theirs, task, samples) if theirs else []
        boards.append(Board(f"{label}, {where}", task, own, theirs, chosen))
    return Story(rows=rows, cells=cells, boards=boards, trainings=trainings, **given)


def cells_behind(label: str, where: str, done: Sequence[Told]) -> tuple[list[Told], str]:
    """Returns the cells behind the rows with a label, and the name of their evaluation task: the label is that name,
    which says what was trained on where that varies."""
    found = [
        (cell, task)
        for cell in done
        for task in cell.evaluations
        if cell.where == where and label in (task, f"{task} (trained on {cell.task})")
    ]
    return [cell for cell, _ in found], found[0][1] if found else label


def questions(cells: Sequence[Told], task: str, samples: Callable[[Told, str, int], list[Record]]) -> list[Question]:
    """Return the problems on which methods differ most in how many distinct answers they give.

    They are of the first seed that most methods have done, with the answers before training and those of each method.
    """
    seeds = [cell.seed for cell in cells]
    seed = max(dict.fromkeys(sorted(seeds)), key=seeds.count)
    group = [cell for cell in cells if cell.seed == seed]
    asked: dict[str | None, dict[str, Record]] = {}
    for cell in group:
        asked[cell.method] = by_problem(samples(cell, task, max(cell.evaluations[task])))
    shared = [p for p in group[0].last(task).problems if all(p in found for found in asked.values())]

    def difference(problem: str) -> int:
        numbers = [distinct(found[problem]) for found in asked.values()]
        return max(numbers) - min(numbers)

    chosen = sorted(shared, key=difference, reverse=True)[:QUESTIONS]  # ties: as they stand in the problem set
    base = by_problem(samples(group[0], task, 0)) if group[0].before(task) is not None else {}
    columns = [(None, base), *asked.items()]
    return [
        Question(
            problem,
            asked[group[0].method][problem]["prompt"],
            seed,
            [answers(method, found[problem]) for method, found in columns if problem in found],
        )
        for problem in chosen
    ]


def parts(text: str) -> tuple[str, int, str]:
    """Returns a text without its middle where it is long: how many characters that is, between what is kept."""
    if len(text) <= LONGEST_ANSWER:
        return text, 0, ""
    half = LONGEST_ANSWER // 2
    return text[:half], len(text) - 2 * half, text[-half:]


def by_problem(records: Sequence[Record]) -> dict[str, Record]:
    return {record["problem"]: record for record in records}


def answers(method: str | None, record: Record) -> Answers:
    texts, verdicts = record["responses"], record["verdicts"]
    shown = [
        Answer(*parts(text), verdict, text in texts[:place])
        for place, (text, verdict) in enumerate(zip(texts[:ANSWERS], verdicts, strict=False))
    ]
    pairs = zip(record["answers"], verdicts, strict=True)
    right = {answer for answer, verdict in pairs if verdict == "right"}
    number = sum(verdict == "right" for verdict in verdicts)
    return Answers(method, shown, len(texts), distinct(record), len(right), number)


def distinct(record: Record) -> int:
    """Return the number of distinct answers to a problem; a response without one counts for none."""
    return len(set(record["answers"]) - {None})
