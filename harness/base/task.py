"""The interface of a task: problems in up to three splits, verdicts on responses, perhaps base models of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from harness.base import identities
from harness.base.errors import UserError, one_of
from harness.base.shape import Shape


class Verdict(StrEnum):
    """How a response was judged; only right earns a reward."""

    RIGHT = "right"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True)
class Answer:
    """The answer in a response, as far as it is complete."""

    text: str | None  # in the task's normal form, so that equal answers have equal texts; None where it cannot be read
    end: int  # characters of the response up to the end of the answer


@dataclass(frozen=True)
class Problem:
    """A problem of a task, with an id that no other problem of the task has."""

    id: str
    prompt: str  # as the model sees it, before any chat template
    answer: str  # what the verdict needs to know


SPLITS = ("train", "validation", "test")


class Verifier(Protocol):
    """Compares mathematical answers; harness.verify.pool has it. Whoever runs something owns one and closes it."""

    def verdicts(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        r"""Judges pairs of a gold answer and a response with its answer in a \boxed{}, in their order."""
        ...


class Task(Protocol):
    """A frozen dataclass of the task's options; loads nothing heavy before it is asked for problems."""

    name: ClassVar[str]  # of the task's folder, and of the lm-eval YAML in it
    splits: ClassVar[tuple[str, ...]]  # that it has; training needs train, evaluation test

    def problems(self, split: str) -> list[Problem]:
        """Returns the problems of train, validation or test, in a fixed order; no problem is in two of them."""
        ...

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        """Judges responses to problems, with the verifier where answers are mathematics.

        It is given all responses that there are, since judging may be worth several processes. It may be called in
        another thread than the main one, while others are sampled.
        """
        ...

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        """Return the answer of each response; None where a response has no complete answer.

        Diversity is counted in these answers, so they must be cheap: no verifier is asked.
        """
        ...

    def flags(self, trained_on: str | None) -> list[str]:
        """Returns what a reader of scores on these problems must know, such as that a training set contains them.

        `trained_on` names the task whose problems the model was trained on; None where nobody knows.
        """
        ...


@runtime_checkable
class Countable(Protocol):
    """A task that can count the right answers to its problems."""

    def solutions(self, problem: Problem) -> int:
        """Return the number of right answers to a problem, in the normal form of `answers`."""
        ...


@dataclass(frozen=True)
class Judged:
    """A response as it was judged."""

    verdict: Verdict
    answer: Answer | None
    goes_on: bool  # text follows the answer

    @property
    def text(self) -> str | None:
        """The answer in the task's normal form; None where there is none that can be read."""
        return None if self.answer is None else self.answer.text


def judge_responses(task: Task, verifier: Verifier, pairs: Sequence[tuple[Problem, str]]) -> list[Judged]:
    """Judge responses to problems, and read their answers."""
    verdicts, answers = task.verdicts(pairs, verifier), task.answers(pairs)
    responses = [response for _, response in pairs]
    return [
        Judged(verdict, answer, answer is not None and answer.end < len(response))
        for verdict, answer, response in zip(verdicts, answers, responses, strict=True)
    ]


class Recipe(Protocol):
    """A frozen dataclass that says how a base model for a task is made here, from nothing; imports no torch."""

    def identity(self) -> dict[str, Any]:
        """Returns all that defines the model, for the hash of its folder in the cache."""
        ...

    def shape(self) -> Shape:
        """Returns the shape of the model, which need not be made for that."""
        ...

    def summary(self) -> str:
        """Describes the model in one line."""
        ...

    def build(self, folder: Path) -> None:
        """Makes the model and saves it as a Hugging Face folder."""
        ...


SIMPLE = re.compile(r"[\w.+-]{1,20}")  # an option's value that a file and a metric may have in their names
LONGEST_OPTIONS = 100  # characters of all options in a name: a file's has 255 at most


def evaluation_name(task: Task) -> str:
    """Return the name of a task in evaluations: with its options, where they differ from their defaults.

    A value that a file's name cannot hold, such as a sentence, is given by the first digits of its hash.
    """
    identity, plain = identities.of(task), identities.of(type(task)())
    changed = {key: value for key, value in identity.items() if value != plain[key]}
    if not changed:
        return task.name
    inside = ",".join(f"{key}={in_a_name(value)}" for key, value in changed.items())
    if len(inside) > LONGEST_OPTIONS:
        inside = identities.key(changed)
    return f"{task.name}({inside})"


def in_a_name(value: Any) -> str:
    """Return an option's value, or its hash where a name cannot hold it."""
    text = str(value)
    return text if SIMPLE.fullmatch(text) else identities.key(value)


def check_split(task: Task, split: str, key: str = "split") -> None:
    """Raises UserError where the task does not have the split."""
    one_of(key, split, SPLITS)
    if split not in task.splits:
        raise UserError(f"{key} is {split!r}, but the task {task.name} has only {' and '.join(task.splits)}")
