"""What a task is: problems in three splits, and a verdict on each response."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol


class Verdict(StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True)
class Problem:
    id: str
    prompt: str  # as the model sees it, before any chat template
    answer: str  # what the verdict needs to know


SPLITS = ("train", "validation", "test")


class Task(Protocol):
    """A frozen dataclass of the task's options; loads nothing heavy before it is asked for problems."""

    name: ClassVar[str]  # of the task's folder, and of the lm-eval YAML in it

    def problems(self, split: str) -> list[Problem]:
        """The problems of train, validation or test, in a fixed order; no problem is in two of them."""
        ...

    def verdict(self, problem: Problem, response: str) -> Verdict: ...
