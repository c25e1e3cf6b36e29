"""The interface of a task: problems in up to three splits, verdicts on responses, optionally recipes of base models."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from harness.base import identities
from harness.base.errors import UserError, one_of
from harness.base.shape import Shape


class Verdict(StrEnum):
    """The judgment of a response; only right earns a reward."""

    RIGHT = "right"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    TIMEOUT = "timeout"
    ERROR = "error"

    @property
    def reward(self) -> float:
        """The reward before any method shapes it: 1 for a right response, 0 for any other."""
        return float(self == Verdict.RIGHT)


@dataclass(frozen=True)
class Answer:
    """The answer in a response."""

    text: str | None  # in the task's normal form, so that equal answers have equal texts; None if unreadable
    end: int  # the number of characters of the response up to the end of the answer


@dataclass(frozen=True)
class Problem:
    """A problem of a task; its id is unique within the task."""

    id: str
    prompt: str  # as the model sees it, before any chat template
    answer: str  # the gold answer, in any form that the task's verdicts need
    shots: tuple[tuple[str, str], ...] = ()  # prompts and right responses of worked examples, the same for a whole task

    def identity(self) -> dict[str, Any]:
        """Return the fields that the problem uses."""
        return {key: value for key, value in vars(self).items() if value != ()}


SPLITS = ("train", "validation", "test")


class Verifier(Protocol):
    """A verifier of answers, such as harness.verify.pool; its owner, a cell or a command, closes it."""

    def verdicts(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        r"""Judge pairs of a gold answer and a response with its answer in a \boxed{}."""
        ...

    def judged_by(self, judge: str, questions: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Judge pairs of a gold answer and an answer in processes of a module of the task, which may be killed."""
        ...

    def scored_by(self, judge: str, questions: Sequence[tuple[str, str]]) -> list[tuple[Verdict, float]]:
        """Judge like `judged_by`, by a module that also gives scores; without a score it is 0."""
        ...


class Task(Protocol):
    """A frozen dataclass of the task's options; it imports nothing heavy before its problems are read."""

    name: ClassVar[str]  # of the task's folder, and of the lm-eval YAML in it
    splits: ClassVar[tuple[str, ...]]  # training needs train, evaluation test

    def problems(self, split: str) -> list[Problem]:
        """Return the problems of train, validation or test in a fixed order; no problem is in two splits."""
        ...

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        """Judge responses to problems, with the verifier if answers are mathematics.

        The call includes all available responses, so that they can be judged in parallel. It may come from another
        thread than the main one, while other responses are sampled.
        """
        ...

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        """Return the answer of each response; None for a response without a complete answer.

        Diversity is counted in these answers for every response, so they must be cheap: no verifier is passed.
        """
        ...

    def flags(self, trained_on: str | None) -> list[str]:
        """Return warnings for readers of scores on these problems, such as that a training set contains them.

        `trained_on` is the name of the task that the model was trained on; None if it is unknown.
        """
        ...


@runtime_checkable
class Graded(Protocol):
    """A task that may reward responses by scores instead of verdicts."""

    @property
    def graded(self) -> bool:
        """Whether it does."""
        ...

    def scores(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[tuple[Verdict, float]]:
        """Judge responses to problems, with the reward of each."""
        ...


@runtime_checkable
class Described(Protocol):
    """A task on a data set of the user's."""

    def about(self) -> str:
        """Return a sentence on the data set: its problems, and what was left out."""
        ...


@runtime_checkable
class Countable(Protocol):
    """A task that can count the right answers to its problems."""

    def solutions(self, problem: Problem) -> int:
        """Return the number of right answers to a problem, in the normal form of `answers`."""
        ...


@runtime_checkable
class Solving(Protocol):
    """A task that can solve its problems."""

    def solution(self, problem: Problem, rng: random.Random) -> str:
        """Return a right response to a problem, drawn where there are several."""
        ...


@runtime_checkable
class Relabeling(Protocol):
    """A task in which a wrong response may be right for another problem."""

    def hindsight(self, problem: Problem, response: str) -> Problem | None:
        """Return the problem that a wrong response may solve, in any split; None if there is none."""
        ...


@dataclass(frozen=True)
class Judged:
    """The verdict on a response, and its answer."""

    verdict: Verdict
    answer: Answer | None
    goes_on: bool  # text follows the answer
    score: float | None = None  # the reward before any method shapes it; None: that of the verdict

    @property
    def reward(self) -> float:
        """The reward before any method shapes it."""
        return self.verdict.reward if self.score is None else self.score

    @property
    def text(self) -> str | None:
        """The answer in the task's normal form; None if there is none or it is unreadable."""
        return None if self.answer is None else self.answer.text


def judge_responses(task: Task, verifier: Verifier, pairs: Sequence[tuple[Problem, str]]) -> list[Judged]:
    """Return the verdicts on responses and their answers."""
    scored: Sequence[tuple[Verdict, float | None]]
    if isinstance(task, Graded) and task.graded:
        scored = task.scores(pairs, verifier)
    else:
        scored = [(verdict, None) for verdict in task.verdicts(pairs, verifier)]
    judged = []
    for (verdict, score), answer, (_, response) in zip(scored, task.answers(pairs), pairs, strict=True):
        goes_on = answer is not None and answer.end < len(response)
        judged.append(Judged(verdict, answer, goes_on, score))
    return judged


class Recipe(Protocol):
    """A frozen dataclass of settings from which a base model is made; imports no torch."""

    def identity(self) -> dict[str, Any]:
        """Return the definition of the model, for the hash of its folder in the cache."""
        ...

    def shape(self) -> Shape | None:
        """Return the shape of the model without making it; None if a part of it must be downloaded for that."""
        ...

    def summary(self) -> str:
        """Return a description of the model in one line."""
        ...

    def build(self, folder: Path, say: Callable[[str], None]) -> None:
        """Make the model and save it as a Hugging Face folder; `say` is called with messages of progress."""
        ...


SIMPLE = re.compile(r"[\w.+-]{1,20}")  # values of options that may be part of the names of files and metrics
LONGEST_OPTIONS = 100  # characters of all options in a name; file names have at most 255


def evaluation_name(task: Task) -> str:
    """Return the name of a task in evaluations, with the options that differ from their defaults.

    A value that cannot be part of a file name, such as a sentence, is replaced by the first digits of its hash.
    """
    identity, plain = identities.component_identity(task), identities.component_identity(type(task)())
    changed = {key: value for key, value in identity.items() if value != plain.get(key)}
    if not changed:
        return task.name
    inside = ",".join(
        f"{key}={value if SIMPLE.fullmatch(str(value)) else identities.key(value)}" for key, value in changed.items()
    )
    if len(inside) > LONGEST_OPTIONS:
        inside = identities.key(changed)
    return f"{task.name}({inside})"


def check_split(task: Task, split: str, key: str = "split") -> None:
    """Raise UserError if the task does not have the split."""
    one_of(key, split, SPLITS)
    if split not in task.splits:
        raise UserError(f"{key} is {split!r}, but the task {task.name} has only {' and '.join(task.splits)}")
