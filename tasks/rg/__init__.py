"""Puzzles of reasoning-gym: generated problems whose own functions judge the answers.

    rg(env=graph_color, seed=0, size=2000)

https://github.com/open-thought/reasoning-gym has some hundred environments. Their functions judge answers in processes
that may be killed (tasks/rg/judge.py). Right means their full score: many give a part of it to almost any answer.
Environments whose scores say nothing, or that would run a model's text as code, are refused by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import ClassVar

from harness.base.errors import UserError
from harness.base.processes import python_command
from harness.base.schema import check, number
from harness.base.task import SPLITS, Answer, Problem, Verdict, Verifier, check_split

JUDGE = "tasks.rg.judge"
INSTRUCTION = "Reason step by step, and give the final answer between <answer> and </answer>."
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
LONGEST = 4000  # characters of an answer; the largest boards have about a thousand
HELD_OUT = 10  # one problem in ten is for testing, another one for validation

EVALUATES = "its function runs a model's text as code"
ANYTHING = "its function accepts almost any answer"
# Of release 0.1.25. tests/tasks/test_rg.py tries trivial answers on all others.
REFUSED = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), f"{EVALUATES} (eval)"),
    **dict.fromkeys(
        ("countdown", "intermediate_integration", "polynomial_multiplication", "simple_integration"),
        f"{EVALUATES} (sympy's parser)",
    ),
    "coin_flip": f"{ANYTHING}: its tolerance is larger than most of its answers",
    "composite": "it has no problems without a list of other environments",
    "game_of_life_halting": ANYTHING,
    "puzzle24": "its function accepts numbers that are not those of the puzzle",
}


@dataclass(frozen=True)
class Rg:
    """An environment of reasoning-gym: generated puzzles, judged by its own function."""

    name: ClassVar[str] = "rg"
    splits: ClassVar[tuple[str, ...]] = SPLITS

    env: str = "graph_color"
    seed: int = number(0, least=0)
    size: int = number(2000, least=1, most=100_000)  # problems in all splits together
    instruction: str = INSTRUCTION  # written after each problem

    def __post_init__(self) -> None:
        check(Rg, vars(self), "rg.")
        if self.env in REFUSED:
            raise UserError(f"rg.env={self.env} is refused: {REFUSED[self.env]}")

    def problems(self, split: str) -> list[Problem]:
        """Return the problems of a split in the order in which the environment makes them, each question once."""
        check_split(self, split)
        problems = []
        for index, question in questions(self.env, self.seed, self.size):
            if question_split(question) == split:
                gold = json.dumps([self.env, self.seed, self.size, index])
                prompt = f"{question.strip()}\n\n{self.instruction}"
                problems.append(Problem(f"{self.env}-{self.seed}-{index}", prompt, gold))
        return problems

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        """Return the verdicts of the environment's function on the text between the last tags of each response."""
        verdicts = [Verdict.UNPARSED] * len(pairs)
        places, asked = [], []
        for place, (problem, response) in enumerate(pairs):
            answer = tagged_answer(response)
            if answer is not None and answer.text is not None:
                places.append(place)
                asked.append((problem.answer, answer.text))
        for place, verdict in zip(places, verifier.judged_by(JUDGE, asked), strict=True):
            verdicts[place] = verdict
        return verdicts

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        """Return the text between the last tags of each response."""
        return [tagged_answer(response) for _, response in pairs]

    def flags(self, trained_on: str | None) -> list[str]:
        """Return no warnings: no training problem is used for testing."""
        return []


def tagged_answer(response: str) -> Answer | None:
    """Return the text between the last tags; its text is None if it is empty or too long."""
    tagged = list(ANSWER.finditer(response))
    if not tagged:
        return None
    last = tagged[-1]
    text = last[1].strip()
    return Answer(text if 0 < len(text) <= LONGEST else None, last.end())


def question_split(question: str) -> str:
    """Return the split of a question; it depends on its text only, not on the task's options."""
    digest = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8])
    return {0: "test", 1: "validation"}.get(digest % HELD_OUT, "train")


@cache
def questions(env: str, seed: int, size: int) -> list[tuple[int, str]]:
    """Return the questions of an environment with their places, without repetitions.

    A process of its own makes them: some environments depend on Python's hash seed, which is fixed there.
    """
    if find_spec("reasoning_gym") is None:
        raise UserError("the task rg needs the package reasoning-gym: pip install -e '.[reasoning]'")
    command = python_command(f"from {JUDGE} import write_questions", "write_questions()", env, str(seed), str(size))
    fixed_hashes = {**os.environ, "PYTHONHASHSEED": "0"}
    made = subprocess.run(command, env=fixed_hashes, capture_output=True, text=True, check=False)
    if made.returncode:
        # The last line has the error itself; without any output, the text in front of it counts.
        *_, reason = ["without a reason", *made.stderr.strip().splitlines()]
        raise UserError(f"rg.env={env} makes no problems: {reason}")
    first_places: dict[str, int] = {}
    for index, question in enumerate(json.loads(made.stdout)):
        first_places.setdefault(question, index)
    return [(index, question) for question, index in first_places.items()]
