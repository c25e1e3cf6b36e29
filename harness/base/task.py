"""What a task is: problems in up to three splits, and verdicts on responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

from harness.base.errors import UserError, one_of


class Verdict(StrEnum):
    """How a response was judged; only right earns a reward."""

    RIGHT = "right"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True)
class Problem:
    """A problem of a task, with an id that no other problem of the task has."""

    id: str
    prompt: str  # as the model sees it, before any chat template
    answer: str  # what the verdict needs to know


SPLITS = ("train", "validation", "test")


class Task(Protocol):
    """A frozen dataclass of the task's options; loads nothing heavy before it is asked for problems."""

    name: ClassVar[str]  # of the task's folder, and of the lm-eval YAML in it
    splits: ClassVar[tuple[str, ...]]  # that it has; training needs train, evaluation test

    def problems(self, split: str) -> list[Problem]:
        """The problems of train, validation or test, in a fixed order; no problem is in two of them."""
        ...

    def verdicts(self, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        """On responses to problems; all that there are, since judging may be worth several processes. It may be called
        in another thread than the main one, while others are sampled."""
        ...


def check_split(task: Task, split: str, key: str = "split") -> None:
    one_of(key, split, SPLITS)
    if split not in task.splits:
        raise UserError(f"{key} is {split!r}, but the task {task.name} has only {' and '.join(task.splits)}")
