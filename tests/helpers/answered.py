"""Packs of cells with answers to real problems of the embedded task, without any training, and forgeries of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from cells import Answers, write_cell

from harness.base import files
from harness.cells import checksums, evaluations
from harness.cells.evaluations import answers_path, evaluation_path
from harness.cells.log import MetricsLog
from harness.cells.spec import CellSpec
from harness.config import load_config
from harness.matrix import Cell, cells
from harness.packs.archive import SUMMARY, Pack, write_pack
from harness.packs.exchange import pack_matrix
from harness.packs.protocol import Protocol
from tasks import Problem, Verdict
from tasks.countdown import Countdown
from tasks.scoring import distinct_right, judged, scores

SMALL = ["train.steps=1", "eval.problems=5", "eval.samples=4", "eval.k=2", "seeds=[0,1]"]
Record = dict[str, Any]


def responses_to(problem: Problem, seed: int) -> list[str]:
    """Return four responses: an expression that may be right, a wrong one, no box, and another try."""
    numbers = [int(text) for text in problem.prompt.rstrip().rstrip(":").partition("=")[0].split()]
    tries = [f"{numbers[0]}{one}{numbers[1]}{other}{numbers[2]}" for one in "+-*" for other in "+-*"]
    right = [f"\\boxed{{{each}}}" for each in tries if eval(each) == int(problem.prompt.partition("=")[2].strip(": "))]
    first = right[0] if right else "\\boxed{1}"
    return [first, f"\\boxed{{{tries[seed]}}}", "none", first]


def write_answered(cell: Cell) -> None:
    """Write a cell that is done."""
    task, last = Countdown(), cell.config.train.steps
    steps, all_answers = [], []
    for step in range(last + 1):
        metrics = {"entropy/mean": 2.0 - step, "tokens/generated": 10.0, "loss/policy": 0.5}
        if evaluations.evaluation_due(cell.config, step, last):
            answers, scores = evaluation_of(cell, task, step)
            all_answers.append(answers)
            metrics |= scores
        steps.append(metrics)
    made = {"base_model": "b" * 64, "harness": "h" * 64}
    write_cell(cell.folder, cell.spec, steps=steps, answers=all_answers, began=1000.0, made=made, seconds=60)


def evaluation_of(cell: Cell, task: Countdown, step: int) -> tuple[Answers, dict[str, float]]:
    """Return the evaluation of a step, and its metrics."""
    problems = task.problems("test")[:5]
    samples: list[Record] = []
    by_problem, right, distinct = [], [], []
    for problem in problems:
        responses = responses_to(problem, cell.seed)
        results = judged(task, None, problem, responses)  # type: ignore[arg-type]
        answers, verdicts = [result.text for result in results], [result.verdict for result in results]
        goes_on = [result.goes_on for result in results]
        sample: Record = {"problem": problem.id, "prompt": problem.prompt, "responses": responses}
        samples.append({**sample, "answers": answers, "verdicts": list(map(str, verdicts)), "goes_on": goes_on})
        right.append([int(verdict == Verdict.RIGHT) for verdict in verdicts])
        distinct.append(distinct_right(verdicts, answers))
        by_problem.append(scores(responses, verdicts, answers, goes_on, task.solutions(problem)))
    metrics = {"avg": float(np.mean(right)), "length": 9.5, "distinct": 0.5}
    for key in by_problem[0].keys() - {"avg"}:
        metrics[key] = fmean(scores_of_problem[key] for scores_of_problem in by_problem)
    evaluation = Answers(
        step,
        right,
        problems=[sample["problem"] for sample in samples],
        distinct=distinct,
        solutions=list(map(task.solutions, problems)),
        flags=task.flags("countdown"),
        samples=samples,
    )
    return evaluation, {f"eval/countdown/{key}": score for key, score in metrics.items()}


def answered_pack(folder: Path, *overrides: str) -> Path:
    """Write the pack of a small matrix."""
    config = load_config("smoke", [f"results={folder / 'results'}", *SMALL, *overrides])
    for cell in cells(config):
        write_answered(cell)
    path = folder / "smoke.zip"
    pack_matrix(config, path)
    return path


@dataclass
class Forgery:
    """The records of a pack, to be edited; `folder` is that of its cell clip_b s0."""

    pack: Path
    matrix: str
    summary: Record  # its matrix.json
    definition: Record  # of its protocol

    @classmethod
    def of(cls, pack: Pack) -> Forgery:
        return cls(pack.folder, pack.matrix, files.read_json(pack.folder / SUMMARY), pack.protocol.definition)

    @property
    def cells(self) -> list[Path]:
        return sorted((self.pack / "cells").iterdir())

    def cell(self, method: str, seed: int) -> Path:
        [folder] = (self.pack / "cells").glob(f"{method}-*-s{seed}-*")
        return folder

    @property
    def folder(self) -> Path:
        return self.cell("clip_b", 0)

    def edit_spec(self, **fields: Any) -> None:
        dataclasses.replace(CellSpec.read(self.folder), **fields).write(self.folder)

    def edit_record(self, name: str, **fields: Any) -> None:
        """Change values in state.json or made.json."""
        files.write_json(self.folder / name, files.read_json(self.folder / name) | fields)

    def edit_evaluation(self, **fields: Any) -> None:
        """Change the last evaluation; at another `step`, write one beside it."""
        record = evaluations.read_evaluation(evaluation_path(self.folder, "countdown", 4))
        evaluations.write_evaluation(self.folder, record | fields)

    def edit_answers(self, edit: Callable[[list[Record]], None]) -> None:
        """Change the answers of the last evaluation."""
        path = answers_path(evaluation_path(self.folder, "countdown", 4))
        answers = files.read_lines(path)
        edit(answers)
        files.write_lines(path, answers)

    def edit_log(self, edit: Callable[[list[Record]], None]) -> None:
        """Change the lines of metrics.jsonl."""
        log = MetricsLog(self.folder)
        lines = log.read()
        edit(lines)
        log.write(lines)

    def write(self, path: Path) -> Path:
        """Write a pack of these records, in which all sums fit."""
        for folder in self.cells:
            checksums.write_checksums(folder)
        write_pack(path, self.matrix, json.dumps(self.summary), self.cells, Protocol(self.definition))
        return path
