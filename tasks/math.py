"""The base classes of mathematical tasks: a data set, an instruction, and verdicts on the answer in the box."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from harness.base.schema import choice
from harness.base.task import Answer, Problem, Verdict, Verifier, check_split
from harness.verify.text import boxed_answer, extract

INSTRUCTION = r"Reason step by step, and give the final answer inside \boxed{}."
HELD_OUT = 50  # one problem of a training set in 50 is for validation
VERDICT, STRINGS = "verdict", "strings"  # rewards: for a verified answer, or for one that is spelled as expected
LONGEST_VARIABLE = 2  # characters before an equals sign, as in x=7
TYPOGRAPHY = re.compile(r"\s|\\!|\\[$%]|\\(?:left|right)(?![a-zA-Z])|\^(?:\\circ(?![a-zA-Z])|\{\\circ\})")


@dataclass(frozen=True)
class Math:
    """A task on the data set of the same name; a subclass may read its rows from elsewhere."""

    name: ClassVar[str]
    splits: ClassVar[tuple[str, ...]] = ("test",)

    instruction: str = INSTRUCTION  # written after each problem; may be empty
    reward: str = choice(VERDICT, (VERDICT, STRINGS))  # strings: equal but for typography

    def identifying(self) -> dict[str, Any]:
        """Return the options; the reward only if it is by strings, so that ids from before stay the same."""
        options = asdict(self)
        if self.reward == VERDICT:
            del options["reward"]
        return options

    def problems(self, split: str) -> list[Problem]:
        check_split(self, split)
        return [Problem(row["id"], self.prompt(row["problem"]), row["answer"]) for row in self.rows(split)]

    def prompt(self, problem: str) -> str:
        return f"{problem}\n\n{self.instruction}" if self.instruction else problem

    def rows(self, split: str) -> list[dict[str, str]]:
        from tasks.data import cache

        return cache.problem_rows(self.name, split)

    def flags(self, trained_on: str | None) -> list[str]:
        """Return warnings about problems that are also in the training set, if the model may have seen it."""
        from tasks.data import check, sets

        if trained_on not in (None, sets.TRAINED) or self.name not in sets.SETS:
            return []
        return check.flags(self.name)

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        if self.reward == STRINGS:
            return [spelled_verdict(problem.answer, response) for problem, response in pairs]
        return verifier.verdicts([(problem.answer, response) for problem, response in pairs])

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        """Return the text in the last box of each response, in normal spelling."""
        return [boxed_answer(response) for _, response in pairs]


class Trained(Math):
    """A task with a training set; a problem's own text decides whether it is held out for validation."""

    splits: ClassVar[tuple[str, ...]] = ("train", "validation")

    def rows(self, split: str) -> list[dict[str, str]]:
        if split == "test":
            return super().rows(split)
        validation = split == "validation"
        return [row for row in super().rows("train") if held_out(row["problem"]) == validation]


def spelled_verdict(gold: str, response: str) -> Verdict:
    """Return the verdict by the spelling of the answer in the last box."""
    answer = extract(response)
    if answer is None:
        return Verdict.UNPARSED
    return Verdict.RIGHT if stripped(answer) == stripped(gold) else Verdict.WRONG


def stripped(answer: str) -> str:
    """Return an answer without typography, a unit at its end, and the name of a variable before it."""
    text = TYPOGRAPHY.sub("", answer.partition(r"\text{ ")[0])
    name, equals, value = text.partition("=")
    return value if equals and len(name) <= LONGEST_VARIABLE else text


def held_out(problem: str) -> bool:
    """Return whether a training problem is for validation, by a hash of its text."""
    return int.from_bytes(hashlib.sha256(problem.encode()).digest()[:8]) % HELD_OUT == 0
