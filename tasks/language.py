"""The common part of the language tasks: problems by key, splits, worked examples, verdicts.

They are for small pretrained language models. A problem is a key, a short text such as `5 river`; its split depends on
the part of the key that says what it is about, so that a problem for testing has no easier or harder twin in training.
Most models of this size answer nothing right until they have seen the form of an answer, so each problem comes after
worked examples. These are never problems of any split.

A response is one line, the answer, and nothing after it. When other text was allowed in Countdown, some policies
learned not to stop, and that text counted as entropy and as diversity.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from harness.base.errors import UserError
from harness.base.schema import check, number
from harness.base.task import SPLITS, Answer, Problem, Verdict, Verifier, check_split

HELD_OUT = 7  # one problem in seven is for testing, another one for validation
SHOTS = 8  # worked examples at most; a task sets aside as many, so that its problems do not depend on their number


@dataclass(frozen=True)
class LanguageTask:
    """A task with generated problems in words; a subclass has `keys`, `prompt`, `examples`, `read` and `is_right`."""

    name: ClassVar[str]
    splits: ClassVar[tuple[str, ...]] = SPLITS

    shots: int = number(4, least=0, most=SHOTS)  # worked examples before each problem

    def __post_init__(self) -> None:
        check(type(self), vars(self), f"{self.name}.")

    def keys(self, split: str) -> list[str]:
        """Return the keys of a split; those of the examples are in none."""
        raise NotImplementedError

    def prompt(self, key: str) -> str:
        raise NotImplementedError

    def examples(self) -> list[tuple[str, str]]:
        """Return SHOTS keys with a right response each."""
        raise NotImplementedError

    def read(self, key: str, response: str) -> Answer | None:
        """Return the answer in a response; its text is None unless the response is this answer alone."""
        raise NotImplementedError

    def is_right(self, key: str, response: str) -> bool:
        """Return whether a response that is an answer alone is right."""
        raise NotImplementedError

    def problems(self, split: str) -> list[Problem]:
        """Return the problems of a split in the order of their digests, so that the first few are a random sample."""
        check_split(self, split)
        shots = tuple((self.prompt(key), response) for key, response in self.examples()[: self.shots])
        in_order = sorted(self.keys(split), key=digest)
        return [self.problem(key, shots) for key in in_order]

    def problem(self, key: str, shots: tuple[tuple[str, str], ...]) -> Problem:
        return Problem(id=key, prompt=self.prompt(key), answer=key, shots=shots)

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        return [self.verdict(problem, response) for problem, response in pairs]

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        """Return the answer of each response.

        If a response has text after its answer, its verdict is unparsed, so the text of its answer is None; the end of
        the answer is still known.
        """
        return [self.read(problem.answer, response) for problem, response in pairs]

    def flags(self, trained_on: str | None) -> list[str]:
        """Return no warnings: no training problem is used for testing."""
        return []

    def verdict(self, problem: Problem, response: str) -> Verdict:
        answer = self.read(problem.answer, response)
        if answer is None or answer.text is None:
            return Verdict.UNPARSED
        return Verdict.RIGHT if self.is_right(problem.answer, response) else Verdict.WRONG


def digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def split_of(subject: str) -> str:
    """Return the split of all problems about a subject; no option of a task moves them to another."""
    return {0: "test", 1: "validation"}.get(digest(subject) % HELD_OUT, "train")


def counts_in_turn(least: int, most: int) -> list[int]:
    """Return SHOTS counts for examples, each about as often; not in ascending order, which a model would continue."""
    rng = random.Random(1)
    counts: list[int] = []
    while len(counts) < SHOTS:
        counts += rng.sample(range(least, most + 1), most - least + 1)
    return counts[:SHOTS]


def check_order(task: LanguageTask, least: int, most: int) -> None:
    """Raise UserError where the smallest count exceeds the largest."""
    if least > most:
        raise UserError(f"{task.name}.least is {least}; allowed: up to {task.name}.most ({most})")
