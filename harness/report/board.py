"""Which cells a table is of, and how they are compared: from a configuration, or from what MLflow holds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tasks
from harness.base import identities
from harness.base.errors import UserError, nearest
from harness.config import Config
from harness.matrix import Cell
from harness.record.runs import Run
from harness.record.sync import params_of

FILE = "matrix.json"  # among the artifacts of a summary
OUTCOMES = "outcomes.json"  # beside it: those of all cells, by digest, since a server gives one file sooner than many
KIND = "entrobench.kind"  # the tag of a summary, which no cell has
SUMMARY = "summary"
KEY = "entrobench.matrix"  # the tag that says which matrix it is a summary of
AXES = ("method", "task", "model", "seed")
OF_CELLS = {*AXES, "cell", "status"}  # the tags of a cell's run
# Of a configuration, these say which cells there are, or where they run; all else makes it another matrix.
RANGE = ("methods", "tasks", "models", "seeds", "baseline")
ELSEWHERE = ("name", "results", "tracking", "hardware", "checkpoint", "plugins")


@dataclass(frozen=True)
class Expected:
    """A cell of the matrix, done or not."""

    method: str
    task: str  # that is trained on
    eval_tasks: Sequence[str]
    model: str
    seed: int
    cell: str
    sources: Mapping[str, str] | None = None  # present hashes of its components' source; None: nobody asks for it
    params: Mapping[str, str] = field(default_factory=dict)  # as those of its run


@dataclass(frozen=True)
class Board:
    experiment: str
    baseline: str
    ks: Mapping[str, int]  # the K of the headline Pass@K, by evaluation task
    expected: Sequence[Expected]
    config: Mapping[str, Any] | None = None  # None: nobody told which cells were expected; those are that are there

    @cached_property
    def key(self) -> str:
        """Returns the hash of what makes this another matrix than those of the same name."""
        given = {key: value for key, value in (self.config or {}).items() if key not in (*RANGE, *ELSEWHERE)}
        return identities.key(given)

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def of_json(cls, text: bytes) -> Board:
        given = json.loads(text)
        return cls(**{**given, "expected": [Expected(**each) for each in given["expected"]]})

    @classmethod
    def of_config(cls, config: Config, matrix: Sequence[Cell]) -> Board:
        expected = [
            Expected(
                cell.method,
                cell.task,
                [tasks.build(spec, config.plugins).name for spec in cell.evaluation_tasks],
                cell.model,
                cell.seed,
                cell.key,
                cell.sources,
                params_of(cell.spec),
            )
            for cell in matrix
        ]
        ks = {task: config.eval.of(task).k for each in expected for task in each.eval_tasks}
        given = dataclasses.asdict(config)
        del given["tracking"]  # its URI may hold a password
        return cls(config.name, config.baseline, ks, expected, given)

    def against(self, baseline: str) -> Board:
        """Returns the same cells, compared with another method."""
        methods = {each.method for each in self.expected}
        if baseline not in methods:
            raise UserError(f"--baseline is {baseline!r}; {nearest(baseline, methods)}")
        return dataclasses.replace(self, baseline=baseline)


def of_runs(experiment: str, runs: Sequence[Run], outcomes: Mapping[str, Mapping[str, Any]]) -> list[Board]:
    """Returns the matrices of an experiment that no summary tells of: one for each set of settings.

    `outcomes`: of the cells that are done. Which evaluations the others were meant to have is known from these.
    """
    by_settings: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        settings = tuple(sorted((key, value) for key, value in run.params.items() if key.partition(".")[0] not in AXES))
        by_settings.setdefault(settings, []).append(run)
    boards = []
    for part in by_settings.values():
        evaluated: dict[str, dict[str, int]] = {}  # task that is trained on -> evaluation tasks and their K
        for run in part:
            for task, told in outcomes.get(run.tags["cell"], {}).get("tasks", {}).items():
                evaluated.setdefault(run.tags["task"], {})[task] = told["k"]
        names = names_of(part)
        expected = [
            Expected(
                method=names[run.tags["cell"]],
                task=run.tags["task"],
                eval_tasks=list(evaluated.get(run.tags["task"], {})),
                model=run.tags["model"],
                seed=int(run.tags["seed"]),
                cell=run.tags["cell"],
                params=run.params,
            )
            for run in {run.tags["cell"]: run for run in part}.values()
        ]
        ks = {task: k for each in evaluated.values() for task, k in each.items()}
        boards.append(Board(experiment, part[-1].tags.get("baseline", ""), ks, expected))
    return boards


def names_of(runs: Sequence[Run]) -> dict[str, str]:
    """Returns the name of the method of each cell, with those of its options that differ among runs of that name."""
    options: dict[str, list[dict[str, str]]] = {}
    for run in runs:
        own = {key: value for key, value in run.params.items() if key.startswith("method.")}
        options.setdefault(run.tags["method"], []).append(own)
    names = {}
    for run in runs:
        method = run.tags["method"]
        keys = sorted({key for each in options[method] for key in each})
        varied = [key for key in keys if len({each.get(key) for each in options[method]}) > 1]
        told = ", ".join(f"{key.rpartition('.')[2]}={run.params.get(key)}" for key in varied)
        names[run.tags["cell"]] = f"{method} ({told})" if told else method
    return names
