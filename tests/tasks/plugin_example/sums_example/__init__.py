"""A task outside the repository; `--plugin sums_example` reads TASKS."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from entrobench import Answer, Problem, Verdict, Verifier, boxed_answer, check_split, number


@dataclass(frozen=True)
class Sums:
    """Sums of two numbers; the odd ones are trained on."""

    name: ClassVar[str] = "example_sums"
    splits: ClassVar[tuple[str, ...]] = ("train", "test")

    largest: int = number(9, least=2)

    def problems(self, split: str) -> list[Problem]:
        check_split(self, split)
        pairs = itertools.product(range(1, self.largest + 1), repeat=2)
        odd = int(split == "train")
        return [Problem(id=f"{a}+{b}", prompt=f"{a}+{b}=", answer=str(a + b)) for a, b in pairs if (a + b) % 2 == odd]

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        return verifier.verdicts([(problem.answer, response) for problem, response in pairs])

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        return [boxed_answer(response) for _, response in pairs]

    def flags(self, trained_on: str | None) -> list[str]:
        return []


TASKS = {"example_sums": Sums}
