"""Problems of one's own: a file, or a data set on the Hugging Face Hub, as a task.

    problems(file=mine.jsonl)
    problems(hub=owner/name, problem=question, judge=exact)

The problems identify the task, and not the path: the same rows elsewhere give the same cells, other rows others.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

from harness.base.errors import UserError, nearest, shown
from harness.base.plugins import JUDGES
from harness.base.schema import check, choice, number
from harness.base.task import SPLITS, Answer, Problem, Verdict, Verifier
from harness.cells.source_digest import source_digest
from harness.verify.box import find_box
from harness.verify.text import extract
from tasks.language import SHOTS
from tasks.math import VERDICT, Math

if TYPE_CHECKING:
    from tasks.problems.data import Data
    from tasks.problems.rows import HubColumns

MATHEMATICS, EXACT = "math", "exact"
JUDGE = "tasks.problems.judge"
SCORE = "score"
DATA = "data"  # in the identity of the task: the digest of its problems


@dataclass(frozen=True)
class OwnProblems(Math):
    """Problems of your own, from a file or from a data set on the Hugging Face Hub."""

    name: ClassVar[str] = "problems"
    splits: ClassVar[tuple[str, ...]] = SPLITS

    file: str | None = None  # JSONL, JSON, CSV or Parquet
    hub: str | None = None  # owner/name, optionally with a branch, a tag or a commit after @
    subset: str | None = None  # of the data set on the Hub, if it has several
    part: str = "train"  # its split on the Hub; ours are made from the problems in it
    problem: str = "problem"  # the columns
    answer: str = "answer"
    validation: float = number(0.1, least=0, most=1)  # share of the problems
    test: float = number(0.1, least=0, most=1)
    shots: int = number(0, least=0, most=SHOTS)  # worked examples before each problem, which are in no split
    judge: str = MATHEMATICS  # or exact, or PLUGIN.NAME, a function in the table JUDGES of a plugin
    reward: str = choice(VERDICT, (VERDICT, SCORE))  # score: what the function returns, and not 1 or 0

    def __post_init__(self) -> None:
        check(type(self), vars(self), f"{self.name}.")
        if self.file is not None and self.hub is not None:
            raise UserError("problems has both a file and a data set on the Hub; allowed: one of the two")
        for option in ("subset", "part"):  # of a data set on the Hub
            value = getattr(self, option)
            if self.file is not None and value != getattr(type(self), option):
                raise UserError(f"problems.{option} is {value!r}, but a file has no {option}; allowed: with hub alone")
        if self.validation + self.test > 1:
            raise UserError(
                f"problems.validation and problems.test are {self.validation} and {self.test}; allowed: 1 together"
            )
        function = self.own_judge()
        if self.graded and function is None:
            raise UserError(
                f"problems.reward is {SCORE!r}, but problems.judge is {self.judge!r}, which gives no scores"
            )
        has = {"train": self.validation + self.test < 1, "validation": self.validation > 0, "test": self.test > 0}
        object.__setattr__(self, "splits", tuple(split for split in SPLITS if has[split]))

    @property
    def data(self) -> Data:
        """The problems in their splits."""
        from tasks.problems.data import Source, read

        if self.on_hub is not None:
            name, file = self.on_hub.hub, self.on_hub.file
            if self.must_download:
                self.on_hub.download()
        elif self.file is not None:
            name, file = self.file, Path(self.file).expanduser()
        else:
            raise UserError(
                "the task problems has no data; write problems(file=mine.jsonl) or problems(hub=owner/name)"
            )
        columns, shares = (self.problem, self.answer), (self.validation, self.test)
        return read(Source(name, file, *columns, *shares, self.splits, self.shots))

    @property
    def on_hub(self) -> HubColumns | None:
        from tasks.problems.rows import HubColumns

        return HubColumns(self.hub, self.subset, self.part, self.problem, self.answer) if self.hub else None

    @property
    def must_download(self) -> bool:
        return self.on_hub is not None and not self.on_hub.file.exists()

    def own_judge(self) -> FunctionType | None:
        """Return the function that judges; None if the harness does.

        It is one of a plugin, which was imported because its user named it: a stranger's pack may name any function.
        """
        if self.judge in (MATHEMATICS, EXACT):
            return None
        plugin, _, name = self.judge.rpartition(".")
        judges = getattr(sys.modules.get(plugin), JUDGES, {})
        if not isinstance(judges, Mapping):
            raise UserError(f"{JUDGES} of plugin {plugin} is {shown(judges)}; it must be a dict of names and functions")
        if not inspect.isfunction(judges.get(name)):
            known = [MATHEMATICS, EXACT, *(f"{plugin}.{each}" for each in judges if inspect.isfunction(judges[each]))]
            raise UserError(
                f"problems.judge is {self.judge!r}; {nearest(self.judge, known)}; a function of your own is "
                f"PLUGIN.NAME, in the table {JUDGES} of a module that plugins or --plugin names"
            )
        function: FunctionType = judges[name]
        return function

    @property
    def graded(self) -> bool:
        return self.reward == SCORE

    def identifying(self) -> dict[str, Any]:
        """Return the values that decide the problems and the verdicts."""
        data = self.data.digest if self.file or self.hub else None
        function = self.own_judge()
        judge = self.judge if function is None else f"{self.judge} {source_digest(function)}"
        options = {"instruction": self.instruction, "shots": self.shots, "judge": judge, "reward": self.reward}
        return {DATA: data, **options}

    def about(self) -> str:
        """Return a sentence on the data set: its problems, and what was left out."""
        data = self.data
        sentence = f"{self.file or self.hub} (data={data.digest}): {data.counts}"
        if not data.absent:
            return sentence
        return f"{sentence}; not compared with {', '.join(data.absent)} (`entrobench data prepare`)"

    def problems(self, split: str) -> list[Problem]:
        problems = super().problems(split)
        form = r"\boxed{%s}" if self.judge in (MATHEMATICS, EXACT) else "%s"
        shots = tuple((self.prompt(problem), form % answer) for problem, answer in self.data.shots.items())
        return [replace(problem, shots=shots) for problem in problems]

    def rows(self, split: str) -> list[dict[str, str]]:
        from tasks.data.clean import problem_digest

        problems = self.data.splits[split]
        return [
            {"id": problem_digest(problem)[:12], "problem": problem, "answer": answer}
            for problem, answer in problems.items()
        ]

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        if self.judge == MATHEMATICS:
            return super().verdicts(pairs, verifier)
        if self.judge == EXACT:
            return [exact_verdict(problem.answer, response) for problem, response in pairs]
        return verifier.judged_by(JUDGE, self.questions(pairs))

    def scores(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[tuple[Verdict, float]]:
        return verifier.scored_by(JUDGE, self.questions(pairs))

    def questions(self, pairs: Sequence[tuple[Problem, str]]) -> list[tuple[str, str]]:
        """Return the questions to the process of a user's function."""
        return [(json.dumps([self.judge, problem.answer]), response) for problem, response in pairs]

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        """Return the text in the last box of each response; for a function of one's own, a response without is one."""
        if self.judge == MATHEMATICS:
            return super().answers(pairs)
        answers = [literal_answer(response) for _, response in pairs]
        if self.judge == EXACT:
            return answers
        return [
            answer or Answer(response.strip() or None, len(response))
            for answer, (_, response) in zip(answers, pairs, strict=True)
        ]


def literal_answer(response: str) -> Answer | None:
    """Return the text in the last box of a response, letter for letter."""
    box = find_box(response)
    return None if box is None else Answer(extract(response), box.end)


def exact_verdict(gold: str, response: str) -> Verdict:
    answer = extract(response)
    if answer is None:
        return Verdict.UNPARSED
    return Verdict.RIGHT if answer == gold else Verdict.WRONG
