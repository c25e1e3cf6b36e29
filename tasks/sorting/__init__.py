"""Sorting: write a few numbers in ascending order.

    Sort these numbers from smallest to largest: 42, 7, 19        ->        7, 19, 42

Problems are generated: a problem is a set of numbers, which are never shown in ascending order, so that copying is not
an answer. One answer is right, which makes this the contrast to `lists` and `sentences`: diversity does not help.

A response is numbers with commas, spaces or "and" between them, a final period at most, and nothing else.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from math import comb
from typing import ClassVar

from harness.base.schema import number
from harness.base.task import Answer, Problem
from tasks.language import SHOTS, LanguageTask, digest, split_of

SETS = 1150  # of numbers, in all splits together

SEPARATOR = r"(?:, and |,? and |, ?| )"
NUMBERS = re.compile(
    rf" ?([0-9]{{1,6}}(?:{SEPARATOR}[0-9]{{1,6}})*)\.?"
)  # not \d, which matches digits of every script
DIGITS = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Sorting(LanguageTask):
    """Numbers to sort, generated; one right answer."""

    name: ClassVar[str] = "sorting"

    count: int = number(3, least=3, most=10)  # numbers in a problem
    largest: int = number(99, least=20, most=9999)  # the largest number; the smallest is 1

    def keys(self, split: str) -> list[str]:
        shown = {key for key, _ in self.examples()}
        return [key for key in number_sets(self) if split_of(key) == split and key not in shown]

    def prompt(self, key: str) -> str:
        return f"Sort these numbers from smallest to largest: {', '.join(shuffled(key))}"

    def examples(self) -> list[tuple[str, str]]:
        """Return examples with different orders: a model copies an order that most of them have."""
        in_train = [key for key in number_sets(self) if split_of(key) == "train"]
        uses: Counter[tuple[int, ...]] = Counter()
        ranked = []
        for key in sorted(in_train, key=digest):
            numbers = key.split(", ")
            order = tuple(numbers.index(number) for number in shuffled(key))
            uses[order] += 1
            ranked.append((uses[order], digest(key), key))
        return [(key, key) for _, _, key in sorted(ranked)[:SHOTS]]

    def read(self, key: str, response: str) -> Answer | None:
        """Return the numbers as they are ordered, with commas between them and without leading zeros."""
        found = NUMBERS.match(response)
        if found is None:
            return None
        numbers = [str(int(digits)) for digits in DIGITS.findall(found[1])]
        return Answer(", ".join(numbers) if found.end() == len(response) else None, found.end())

    def is_right(self, key: str, response: str) -> bool:
        answer = self.read(key, response)
        return answer is not None and answer.text == key

    def solution(self, problem: Problem, rng: random.Random) -> str:
        return problem.answer

    def solutions(self, problem: Problem) -> int:
        return 1


@cache
def number_sets(task: Sorting) -> list[str]:
    """Return the keys of a seeded sample of sets of numbers, in ascending order as in the answers."""
    rng = random.Random(0)
    drawn: set[tuple[int, ...]] = set()
    while len(drawn) < min(SETS, comb(task.largest, task.count)):
        drawn.add(tuple(sorted(rng.sample(range(1, task.largest + 1), task.count))))
    return [", ".join(map(str, numbers)) for numbers in sorted(drawn)]


def shuffled(key: str) -> list[str]:
    """Return the numbers of a problem in an order that is not ascending."""
    numbers, rng = key.split(", "), random.Random(digest(key))
    order = numbers
    while order == numbers:
        order = rng.sample(numbers, len(numbers))
    return order
