"""Matrices of a configuration with made-up results, and the output of `entrobench leaderboard` on them."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cells import Answers, write_cell
from commands import end_of

from harness.config import Config, load_config
from harness.matrix import Cell, cells
from harness.table.publish import publish
from harness.tracking import sync

NO_STORE = "sqlite:///no-such-folder/mlflow.db"  # of a matrix that is only packed or unpacked, which opens none
MOST_DISTINCT = 3  # the most distinct right answers to a problem


@dataclass
class MadeUpMatrix:
    """A matrix with made-up results, sent to MLflow as by `run`."""

    config: Config
    cells: list[Cell]
    given: list[str] = field(default_factory=list)  # the words that name it in a command
    clock: itertools.count[float] = field(default_factory=lambda: itertools.count(1000.0, 10.0))

    def write(self, cell: Cell, state: str = "done", last: float = 1.0, **made: Any) -> None:
        """Write a cell's records, with the entropy of its last step; `made`: of the record of its attempt."""
        fixed = {"distinct_answers": 0.25, "after_answer": 0.125}
        steps = []
        for step, entropy in enumerate((2.0, last)):
            metrics = {"entropy/mean": entropy, "weights/dropped": step / 4, "tokens/generated": 100.0}
            scores = {**fixed, "length": 7.0 + step}
            steps.append(metrics | {f"eval/countdown/{name}": score for name, score in scores.items()})
        answers = [made_up_answers(cell, task, step) for step in (0, 1) for task in cell.evaluation_tasks]
        made = {"commit": "c" * 40, "dirty": False} | made
        write_cell(cell.folder, cell.spec, state, steps, answers, began=next(self.clock), made=made, seconds=1800)

    def write_all(self) -> MadeUpMatrix:
        """Write the records of all cells, and send none to MLflow, which takes longer."""
        for cell in self.cells:
            self.write(cell)
        return self

    def send(self, cell: Cell, state: str = "done", last: float = 1.0, **made: Any) -> None:
        """Write a cell's records, and send them to MLflow; the arguments are those of `write`."""
        self.write(cell, state, last, **made)
        sync.sync(cell.folder, self.config.tracking_uri)

    def send_all(self) -> MadeUpMatrix:
        for cell in self.cells:
            self.send(cell)
        publish(self.config, self.cells)
        return self


def smoke_matrix(root: Path, uri: str, *overrides: str, name: str = "made") -> MadeUpMatrix:
    """Return a matrix of three methods and two seeds."""
    given = [f"name={name}", f"results={root}", f"tracking.uri={uri}", "methods=[grpo,clip_b,ppo]", "seeds=[0,1]"]
    given += overrides
    config = load_config("smoke", given)
    return MadeUpMatrix(config, cells(config), ["smoke", *given])


def made_up_answers(cell: Cell, task: str, step: int) -> Answers:
    """Return answers of which a third is right: before training those of the seed, later those of the method too."""
    drawn = np.random.default_rng([cell.seed, *(cell.method.encode() if step else [])])
    right = (drawn.random((6, 16)) < 0.3).astype(int).tolist()
    distinct = [min(sum(row), MOST_DISTINCT) for row in right]
    return Answers(step, right, task, distinct=distinct, solutions=[2 * MOST_DISTINCT] * len(right))


def show_table(*arguments: str) -> str:
    """Return the output of `entrobench leaderboard`, or its error message if it fails."""
    code, out, err = end_of("leaderboard", *arguments)
    assert code == (2 if err else 0), err
    return err or out


def json_rows(*arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(show_table(*arguments, "--format", "json"))
    return rows


def trained_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["method"] != "base model"]
