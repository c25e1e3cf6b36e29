"""The expected cells of a table and their baseline, from a configuration or from runs in MLflow."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.base import files, identities
from harness.base.errors import UserError, nearest
from harness.cells.provenance import sources_in
from harness.cells.spec import TRAINER, value_in
from harness.config import PUBLISHED, TUNED, TUNED_SUFFIX, Config
from harness.matrix import Cell
from harness.tracking.reader import Run
from harness.tracking.sync import READ_ONLY, params_of

FILE = "matrix.json"  # among the artifacts of a summary
OUTCOMES = "outcomes.json"  # next to it: all cells' outcomes by digest, since a server is faster with one file
KIND = "entrobench.kind"  # a tag of summaries only
SUMMARY = "summary"
KEY = "entrobench.matrix"  # the tag with the key of the summarized matrix
AXES = ("method", "task", "model", "seed")
OF_CELLS = {*AXES, "cell", "status"}  # the tags of a cell's run
# Keys of a configuration that select cells (RANGE) or where they run (ELSEWHERE); any other key changes the matrix.
RANGE = ("methods", "tasks", "models", "seeds", "axes", "baseline")
ELSEWHERE = ("name", "results", "tracking", "launch", "hardware", "checkpoint", "plugins")
NO_CELL = ""  # the key of a cell without a run if no configuration is known

Pairs = tuple[tuple[str, str], ...]
PlainConfig = Mapping[str, Any]
Outcomes = Mapping[str, Mapping[str, Any]]  # by cell


@dataclass(frozen=True)
class Expected:
    """A cell of the matrix, done or not."""

    method: str
    task: str  # of the training
    eval_tasks: Sequence[str]
    model: str
    seed: int
    cell: str
    sources: Mapping[str, str] | None = None  # hashes of its components' source
    params: Mapping[str, str] = field(default_factory=dict)  # the same as the parameters of its run
    made_of: str | None = None  # its method with compositions written out; None if it contains none
    options: str = ""  # the spec that tuning chose for it, where `method` is its name

    @property
    def setting(self) -> dict[str, str]:
        """Its value at each axis of its configuration apart from methods, tasks, models and seeds."""
        return {key: self.params[key] for key in further_axes(self.params)}

    @property
    def place(self) -> tuple[str, ...]:
        """Its values at all axes as text."""
        return (self.method, self.task, self.model, str(self.seed), *self.setting.values())


@dataclass(frozen=True)
class Board:
    """The expected cells of one matrix, and what they are compared with."""

    experiment: str
    baseline: str
    ks: Mapping[str, int]  # the K of the headline Pass@K, by evaluation task
    expected: Sequence[Expected]
    config: Mapping[str, Any] | None = None  # None: the expected cells were derived from runs

    @cached_property
    def key(self) -> str:
        """The hash of the settings by which this matrix differs from others of the same name."""
        settings = {}  # a key that an axis varies has its value without the axis
        for key, value in (self.config or {}).items():
            if key not in (*RANGE, *ELSEWHERE):
                settings[key] = value
        return identities.key(settings)

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def of_json(cls, text: bytes) -> Board:
        try:
            fields = json.loads(text)
            expected = [Expected(**cell) for cell in fields.pop("expected")]
            board = cls(**fields, expected=expected)
            board.check()
            return board
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UserError(
                f"the {FILE} of a summary was written by another version of entrobench; `entrobench sync` replaces it"
            ) from error

    def check(self) -> None:
        """Raise ValueError if a value is not of the type of its field, or if a cell names what has no value."""
        for record in (self, *self.expected):
            if wrong := files.wrong_fields(type(record), vars(record)):
                raise ValueError(wrong[0])
        for cell in self.expected:
            if {*cell.eval_tasks} - self.ks.keys() | {*further_axes(cell.params)} - cell.params.keys():
                raise ValueError(cell.cell)
        if not self.expected or min(self.ks.values(), default=1) < 1:
            raise ValueError("expected")
        if (self.config or {}).get("ruleset") == TUNED:
            candidates = value_in(self.config or {}, "tune.candidates")
            if not files.has_type(candidates, dict[str, list[str]]):
                raise ValueError("tune.candidates")

    @classmethod
    def of_config(cls, config: Config, matrix: Sequence[Cell]) -> Board:
        expected = list(map(expected_cell, matrix))
        ks = {}
        for cell in expected:
            for task in cell.eval_tasks:
                ks[task] = config.eval.of(task).k
        settings = config.plain()
        del settings["tracking"]  # its URI may hold a password
        return cls(config.name, config.baseline, ks, expected, settings)

    def with_adopted(self, runs: Sequence[Run]) -> Board:
        """Return the board with the cells of these runs that other trainers trained and that it may be compared with.

        Of several of one method, model and seed the newest counts.
        """
        adopted: dict[tuple[str, ...], Expected] = {}
        for run in runs:  # the oldest first
            if TRAINER not in run.tags or run.tags["status"] != "done":
                continue
            for cell in self.expected:
                if evaluated_alike(run.params, cell.params) and same_version(
                    sources_in(run.tags) or {}, cell.sources or {}
                ):
                    axes = tuple(run.tags[axis] for axis in AXES)
                    adopted[axes] = adopted_cell(run, cell)
                    break
        return dataclasses.replace(self, expected=[*self.expected, *adopted.values()])

    @property
    def title(self) -> str:
        """The name of the configuration, without the ending that tuning adds for the experiment."""
        is_tuned = (self.config or {}).get("ruleset") == TUNED
        return self.experiment.removesuffix(TUNED_SUFFIX) if is_tuned else self.experiment

    def named(self) -> Board:
        """Return the board with tuned methods under their names, and what tuning chose for them as their options."""
        config = self.config or {}
        if config.get("ruleset") != TUNED or any(cell.options for cell in self.expected):
            return self
        names_by_spec: dict[str, set[str]] = {}
        for name, specs in config["tune"]["candidates"].items():
            for spec in specs:
                names_by_spec.setdefault(spec, set()).add(name)
        present = dict.fromkeys(cell.method for cell in self.expected)
        names = {}
        for spec in present:
            if len(names_by_spec.get(spec, ())) == 1:
                [names[spec]] = names_by_spec[spec]
        if len({names.get(spec, spec) for spec in present}) < len(present):
            return self  # packs with different choices: only specs tell their rows apart
        expected = []
        for cell in self.expected:
            if cell.method in names:
                cell = dataclasses.replace(cell, method=names[cell.method], options=cell.method)
            expected.append(cell)
        baseline = names.get(self.baseline, self.baseline)
        return dataclasses.replace(self, expected=expected, baseline=baseline)

    def against(self, baseline: str) -> Board:
        """Return the same cells, compared with another method."""
        methods = {cell.method for cell in self.expected}
        if baseline not in methods:
            raise UserError(f"--baseline is {baseline!r}; {nearest(baseline, methods)}")
        return dataclasses.replace(self, baseline=baseline)


def expected_cell(cell: Cell) -> Expected:
    """Return a cell of a configuration as a table expects it."""
    spec = cell.spec
    evaluations = [cell.shared.evaluation_name(task) for task in cell.evaluation_tasks]
    return Expected(
        cell.method,
        cell.task,
        evaluations,
        cell.model,
        cell.seed,
        cell.id,
        cell.sources,
        params_of(spec),
        spec.made_of,
    )


# Adopted cells


def evaluated_alike(adopted: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Return whether an adopted cell was evaluated as a cell of the matrix is, both by their parameters."""
    if own.get("axes") or own.get("ruleset", PUBLISHED) != PUBLISHED:
        return False  # it has no value at an axis, and its options were chosen by no rule
    for key, value in adopted.items():
        of_training = key in ("method", "seed", TRAINER) or key.startswith("method.")
        if not of_training and key != READ_ONLY and own.get(key) != value:
            return False
    return True


def same_version(recorded: Mapping[str, str], present: Mapping[str, str]) -> bool:
    """Return whether no component was edited between two records."""
    return all(present.get(name) == digest for name, digest in recorded.items())


def adopted_cell(run: Run, alike: Expected) -> Expected:
    """Return the adopted cell of a run, which is evaluated as another cell is."""
    return Expected(
        run.tags["method"],
        run.tags["task"],
        alike.eval_tasks,
        run.tags["model"],
        int(run.tags["seed"]),
        run.tags["cell"],
        sources_in(run.tags),
        run.params,
        run.tags.get("made_of"),
    )


# From runs alone


def settings_of(params: Mapping[str, str]) -> Pairs:
    """Return the parameters that all cells of a matrix share."""
    varied = (*AXES, *further_axes(params), READ_ONLY)
    shared = []
    for key, value in params.items():
        # Options belong to their method: method.clip_b.share differs within a matrix, as methods do.
        if key.partition(".")[0] not in AXES and key not in varied:
            shared.append((key, value))
    return tuple(sorted(shared))


def further_axes(params: Mapping[str, str]) -> list[str]:
    """Return the keys of the axes that a run's configuration names."""
    return params["axes"].split(", ") if params.get("axes") else []


def boards_of_runs(
    experiment: str, runs: Sequence[Run], outcomes: Outcomes, config_of: Callable[[Run], PlainConfig]
) -> list[Board]:
    """Return the matrices without a summary: one for each set of settings.

    `outcomes`: of the cells that are done. `config_of`: the configuration that a run was made by; that of the newest
    run may contain further cells. If it is empty, only the cells with a run are expected.
    """
    parts: dict[Pairs, list[Run]] = {}
    for run in runs:
        parts.setdefault(settings_of(run.params), []).append(run)
    boards = []
    for shared, part in parts.items():
        newest = part[-1]  # runs are sorted by age
        boards.append(board_of_runs(experiment, dict(shared), part, outcomes, config_of(newest)))
    return boards


def board_of_runs(
    experiment: str, shared: Mapping[str, str], runs: Sequence[Run], outcomes: Outcomes, config: PlainConfig
) -> Board:
    """Return the matrix of runs that share their settings."""
    ks_by_task = evaluations_by_task(runs, outcomes)
    further = values_of_further_axes(config)
    begun = cells_with_a_run(runs, ks_by_task)
    expected = [*begun, *cells_without_a_run(begun, runs, ks_by_task, shared, config, further)]
    methods, tasks, models, seeds = values_of_axes(config)
    order = (seeds, *further.values(), models, tasks, methods)

    def place(cell: Expected) -> list[int]:
        """Return the place of a cell in the order of the configuration; unknown values come last."""
        setting = map(cell.params.__getitem__, further)
        values = (cell.seed, *setting, cell.model, cell.task, cell.params.get("method", cell.method))
        places = []
        for value, known in zip(values, order, strict=True):
            places.append(known.index(value) if value in known else len(known))
        return places

    ks: dict[str, int] = {}
    for by_task in ks_by_task.values():
        ks |= by_task
    baseline = config.get("baseline") or runs[-1].tags.get("baseline", "")
    return Board(experiment, baseline, ks, sorted(expected, key=place))


def values_of_axes(config: PlainConfig) -> list[list[Any]]:
    """Return the methods, tasks, models and seeds of a configuration; empty lists if it is unknown."""
    return [list(config.get(f"{axis}s", [])) for axis in AXES]


def values_of_further_axes(config: PlainConfig) -> dict[str, list[str]]:
    """Return the values of the other axes as text, by key."""
    further = {}
    for key, values in config.get("axes", {}).items():
        further[key] = list(map(str, values))
    return further


def evaluations_by_task(runs: Sequence[Run], outcomes: Outcomes) -> dict[str, dict[str, int]]:
    """Return the evaluation tasks and their K, by training task."""
    ks_by_task: dict[str, dict[str, int]] = {}
    for run in runs:
        records = outcomes.get(run.tags["cell"], {}).get("tasks", {})
        for evaluated, record in records.items():
            ks_by_task.setdefault(run.tags["task"], {})[evaluated] = record["k"]
    return ks_by_task


def cells_with_a_run(runs: Sequence[Run], ks_by_task: Mapping[str, Mapping[str, int]]) -> list[Expected]:
    """Return the cells that have begun."""
    names = method_names(runs)
    cells = []
    for run in counting_runs(runs, names):
        cell, task, model = run.tags["cell"], run.tags["task"], run.tags["model"]
        evaluations, seed = list(ks_by_task.get(task, {})), int(run.tags["seed"])
        made_of = run.tags.get("made_of")
        expected = Expected(
            names[cell], task, evaluations, model, seed, cell, sources_in(run.tags), run.params, made_of
        )
        cells.append(expected)
    return cells


def cells_without_a_run(
    begun: Sequence[Expected],
    runs: Sequence[Run],
    ks_by_task: Mapping[str, Mapping[str, int]],
    shared: Mapping[str, str],
    config: PlainConfig,
    further: Mapping[str, Sequence[str]],
) -> list[Expected]:
    """Return the cells that the newest run's configuration contains and that have not begun."""
    names = method_names(runs)
    # A configuration gives the plain name of a method, but the name in a table may have options behind it.
    methods_of_runs, latest_names = {}, {}
    for run in runs:
        methods_of_runs[run.tags["cell"]] = run.tags["method"]
        latest_names[run.tags["method"]] = names[run.tags["cell"]]
    present = set()
    for cell in begun:
        own_values = tuple(cell.params[key] for key in further)
        present.add((methods_of_runs[cell.cell], cell.task, cell.model, cell.seed, own_values))
    cells = []
    for method, task, model, seed, *values in itertools.product(*values_of_axes(config), *further.values()):
        if (method, task, model, seed, tuple(values)) not in present:
            setting = dict(zip(further, values, strict=True))
            params = {**shared, **setting, "method": method, "task": task, "model": model, "seed": str(seed)}
            name, evaluations = latest_names.get(method, method), [*ks_by_task.get(task, {})]
            cells.append(Expected(name, task, evaluations, model, seed, NO_CELL, params=params))
    return cells


def counting_runs(runs: Sequence[Run], names: Mapping[str, str]) -> list[Run]:
    """Return one run for each method, task, model and seed: the newest that is done, or else the newest.

    Runs of earlier versions of a method or a task are left out.
    """
    chosen: dict[tuple[str, ...], Run] = {}
    newest = newest_sources(runs)
    for run in runs:
        if not same_version(sources_in(run.tags) or {}, newest):
            continue
        varied = [run.params.get(key, "") for key in further_axes(run.params)]
        further_tags = [run.tags[axis] for axis in AXES[1:]]
        axes = (names[run.tags["cell"]], *further_tags, *varied)
        # The oldest comes first: a later run replaces an earlier one, unless only the earlier one is done.
        if axes not in chosen or run.tags["status"] == "done" or chosen[axes].tags["status"] != "done":
            chosen[axes] = run
    return list(chosen.values())


def newest_sources(runs: Sequence[Run]) -> dict[str, str]:
    """Return the newest hash of each component's source; older runs may have other hashes."""
    newest: dict[str, str] = {}
    for run in runs:
        newest |= sources_in(run.tags) or {}
    return newest


def method_names(runs: Sequence[Run]) -> dict[str, str]:
    """Return the name of each cell's method, with the options that differ among runs of that name."""
    options: dict[str, list[dict[str, str]]] = {}
    for run in runs:
        options_of_run = {key: value for key, value in run.params.items() if key.startswith("method.")}
        options.setdefault(run.tags["method"], []).append(options_of_run)
    names = {}
    for run in runs:
        method = run.tags["method"]
        values = []
        for key in differing_keys(options[method]):
            option = key.rpartition(".")[2]
            values.append(f"{option}={run.params.get(key)}")
        names[run.tags["cell"]] = f"{method} ({', '.join(values)})" if values else method
    return names


def differing_keys(records: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys whose values are not the same in all records."""
    differing = []
    for key in sorted(set().union(*records)):
        values = {record.get(key) for record in records}
        if len(values) > 1:
            differing.append(key)
    return differing
