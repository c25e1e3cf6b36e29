"""Which cells a table is of, and how they are compared: from a configuration, or from what MLflow holds."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.base import identities
from harness.base.errors import UserError, nearest
from harness.cells.provenance import sources_in
from harness.config import Config
from harness.matrix import Cell
from harness.tracking.runs import Run
from harness.tracking.sync import params_of

FILE = "matrix.json"  # among the artifacts of a summary
OUTCOMES = "outcomes.json"  # beside it: those of all cells, by digest, since a server gives one file sooner than many
KIND = "entrobench.kind"  # the tag of a summary, which no cell has
SUMMARY = "summary"
KEY = "entrobench.matrix"  # the tag that says which matrix it is a summary of
AXES = ("method", "task", "model", "seed")
OF_CELLS = {*AXES, "cell", "status"}  # the tags of a cell's run
# Of a configuration, these say which cells there are, or where they run; all else makes it another matrix.
RANGE = ("methods", "tasks", "models", "seeds", "axes", "baseline")
ELSEWHERE = ("name", "results", "tracking", "launch", "hardware", "checkpoint", "plugins")
NO_CELL = ""  # the id of a cell that nobody has begun, where no configuration tells it

Pairs = tuple[tuple[str, str], ...]
Given = Mapping[str, Any]  # a configuration as plain values
Outcomes = Mapping[str, Mapping[str, Any]]  # by cell


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
    made_of: str | None = None  # its method with compositions written out; None where it names none

    @property
    def setting(self) -> dict[str, str]:
        """Returns its value at each axis that its configuration has beside methods, tasks, models and seeds."""
        return {key: self.params[key] for key in further_axes(self.params)}


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
        return identities.key(given)  # of what an axis varies, the value that it would have without

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def of_json(cls, text: bytes) -> Board:
        given = json.loads(text)
        try:
            return cls(**{**given, "expected": [Expected(**each) for each in given["expected"]]})
        except (TypeError, KeyError) as error:
            raise UserError(
                f"the {FILE} of a summary was written by another version of entrobench; `entrobench sync` replaces it"
            ) from error

    @classmethod
    def of_config(cls, config: Config, matrix: Sequence[Cell]) -> Board:
        expected = [
            Expected(
                cell.method,
                cell.task,
                [cell.shared.evaluation_name(each) for each in cell.evaluation_tasks],
                cell.model,
                cell.seed,
                cell.id,
                cell.sources,
                params_of(spec),
                spec.made_of,
            )
            for cell in matrix
            for spec in [cell.spec]
        ]
        evaluated = {task for each in expected for task in each.eval_tasks}
        ks = {task: config.eval.of(task).k for task in evaluated}
        given = dataclasses.asdict(config)
        del given["tracking"]  # its URI may hold a password
        return cls(config.name, config.baseline, ks, expected, given)

    def against(self, baseline: str) -> Board:
        """Returns the same cells, compared with another method."""
        methods = {each.method for each in self.expected}
        if baseline not in methods:
            raise UserError(f"--baseline is {baseline!r}; {nearest(baseline, methods)}")
        return dataclasses.replace(self, baseline=baseline)


# From runs alone


def settings_of(params: Mapping[str, str]) -> Pairs:
    """Returns the parameters that all cells of a matrix share."""
    varied = further_axes(params)
    own = {key: value for key, value in params.items() if key.partition(".")[0] not in AXES and key not in varied}
    return tuple(sorted(own.items()))


def further_axes(params: Mapping[str, str]) -> list[str]:
    """Returns the keys of the axes that a run's configuration names."""
    return params["axes"].split(", ") if params.get("axes") else []


def of_runs(experiment: str, runs: Sequence[Run], outcomes: Outcomes, config_of: Callable[[Run], Given]) -> list[Board]:
    """Returns the matrices that no summary tells of: one for each set of settings.

    `outcomes`: of the cells that are done. `config_of`: the configuration that a run was made by, of which the newest
    says which further cells are meant; an empty one says nothing, and those that have a run are all.
    """
    parts: dict[Pairs, list[Run]] = {}
    for run in runs:
        parts.setdefault(settings_of(run.params), []).append(run)
    return [of_part(experiment, dict(shared), part, outcomes, config_of(part[-1])) for shared, part in parts.items()]


def of_part(
    experiment: str, shared: Mapping[str, str], runs: Sequence[Run], outcomes: Outcomes, config: Given
) -> Board:
    evaluated: dict[str, dict[str, int]] = {}  # task that is trained on -> evaluation tasks and their K
    for run in runs:
        for task, told in outcomes.get(run.tags["cell"], {}).get("tasks", {}).items():
            evaluated.setdefault(run.tags["task"], {})[task] = told["k"]
    names, newest = names_of(runs), newest_sources(runs)
    found, begun = [], set()
    further = {key: list(map(str, values)) for key, values in config.get("axes", {}).items()}
    for run in counting(runs, names):
        cell, method, task, model = (run.tags[key] for key in ("cell", "method", "task", "model"))
        seed, sources = int(run.tags["seed"]), {part: newest[part] for part in sources_in(run.tags) or {}}
        begun.add((method, task, model, seed, tuple(run.params[key] for key in further)))
        evaluations, made_of = [*evaluated.get(task, {})], run.tags.get("made_of")
        found.append(Expected(names[cell], task, evaluations, model, seed, cell, sources, run.params, made_of))
    latest = {run.tags["method"]: names[run.tags["cell"]] for run in runs}
    ranges = [[*config.get(f"{axis}s", [])] for axis in AXES]
    for method, task, model, seed, *values in itertools.product(*ranges, *further.values()):
        if (method, task, model, seed, tuple(values)) not in begun:
            setting = dict(zip(further, values, strict=True))
            own = {**shared, **setting, "method": method, "task": task, "model": model, "seed": str(seed)}
            name, evaluations = latest.get(method, method), [*evaluated.get(task, {})]
            found.append(Expected(name, task, evaluations, model, seed, NO_CELL, params=own))

    def place(each: Expected) -> list[int]:
        setting = (each.params[key] for key in further)
        own = (each.seed, *setting, each.model, each.task, each.params.get("method", each.method))
        known = (ranges[3], *further.values(), ranges[2], ranges[1], ranges[0])
        return [those.index(one) if one in those else len(those) for one, those in zip(own, known, strict=True)]

    ks = {task: k for each in evaluated.values() for task, k in each.items()}
    return Board(experiment, config.get("baseline") or runs[-1].tags.get("baseline", ""), ks, sorted(found, key=place))


def counting(runs: Sequence[Run], names: Mapping[str, str]) -> list[Run]:
    """Returns one run for each method, task, model and seed: the newest that is done, or else the newest. Others are of
    cells that differ in what is no parameter, as the version of a task."""
    chosen: dict[tuple[str, ...], Run] = {}
    for run in runs:
        varied = (run.params.get(key, "") for key in further_axes(run.params))
        axes = (names[run.tags["cell"]], *(run.tags[axis] for axis in AXES[1:]), *varied)
        if axes not in chosen or run.tags["status"] == "done" or chosen[axes].tags["status"] != "done":
            chosen[axes] = run
    return list(chosen.values())


def newest_sources(runs: Sequence[Run]) -> dict[str, str]:
    """Returns the newest hash of each component's source, from which those of older runs may differ."""
    return {part: digest for run in runs for part, digest in (sources_in(run.tags) or {}).items()}


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
