"""The matrices of an MLflow experiment: the expected cells, by a configuration or a summary, and their runs."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.base import files, identities
from harness.base.addresses import visible_address
from harness.base.errors import UserError, nearest, one_of
from harness.base.units import plural
from harness.cells.evaluations import OUTCOME, OUTCOME_TAG
from harness.cells.provenance import sources_in
from harness.cells.source_digest import DIGITS, edited_components
from harness.cells.spec import FILE as SPEC
from harness.cells.spec import TRAINER, CellSpec, value_in
from harness.config import PUBLISHED, TUNED, TUNED_SUFFIX, Config
from harness.matrix import Cell
from harness.tracking.reader import Run, StoreReader, reader
from harness.tracking.sync import params_of, params_without_k

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
NO_CELL = ""  # the key of a cell that a pack lacks
NO_RUN = "without a run"  # the state of a cell


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
    config: Mapping[str, Any]  # as plain values

    @cached_property
    def key(self) -> str:
        """The hash of the settings by which this matrix differs from others of the same name."""
        # A key that an axis varies has its value without the axis.
        settings = {key: value for key, value in self.config.items() if key not in (*RANGE, *ELSEWHERE)}
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
        if len({cell.place for cell in self.expected}) < len(self.expected):  # one seed of a row would count as two
            raise ValueError("place")
        if self.config.get("ruleset") == TUNED:
            candidates = value_in(self.config, "tune.candidates")
            if not files.has_type(candidates, dict[str, list[str]]):
                raise ValueError("tune.candidates")

    @classmethod
    def of_config(cls, config: Config, matrix: Sequence[Cell]) -> Board:
        expected = list(map(expected_cell, matrix))
        ks = {task: config.eval.of(task).k for cell in expected for task in cell.eval_tasks}
        settings = config.plain()
        del settings["tracking"]  # its URI may hold a password
        return cls(config.name, config.baseline, ks, expected, settings)

    def with_adopted(self, runs: Sequence[Run], specs: Sequence[CellSpec | None], matrix: Sequence[Cell]) -> Board:
        """Return the board with the adopted cells, of these runs and specs, that it may be compared with.

        Of several of one method, model and seed the newest counts. `matrix`: the cells of the board.
        """
        adopted: dict[tuple[str, ...], Expected] = {}
        for run, spec in zip(runs, specs, strict=True):  # the oldest first
            sources = sources_in(run.tags) or {}
            for cell, own in zip(self.expected, matrix, strict=True):
                # No component was edited and no problem corrected between the two records.
                same_version = sources.items() <= (cell.sources or {}).items()
                same_version &= spec is None or of_same_problems(spec.identity, own.identity)
                if same_version and evaluated_alike(run.params, cell.params):
                    axes = tuple(run.tags[axis] for axis in AXES)
                    adopted[axes] = adopted_cell(run, cell)
                    break
        return dataclasses.replace(self, expected=[*self.expected, *adopted.values()])

    @property
    def title(self) -> str:
        """The name of the configuration, without the ending that tuning adds for the experiment."""
        is_tuned = self.config.get("ruleset") == TUNED
        return self.experiment.removesuffix(TUNED_SUFFIX) if is_tuned else self.experiment

    def named(self) -> Board:
        """Return the board with tuned methods under their names, and what tuning chose for them as their options."""
        config = self.config
        if config.get("ruleset") != TUNED or any(cell.options for cell in self.expected):
            return self
        candidates = config["tune"]["candidates"]
        present = {cell.method for cell in self.expected}
        names = {}
        for spec in present:
            tuned = [name for name, specs in candidates.items() if spec in specs]
            if len(tuned) == 1:
                [names[spec]] = tuned
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
        one_of("--baseline", baseline, {cell.method for cell in self.expected})
        return dataclasses.replace(self, baseline=baseline)


def expected_cell(cell: Cell) -> Expected:
    spec = cell.spec
    evaluations = [cell.shared.evaluation_name(task) for task in cell.evaluation_tasks]
    return Expected(
        cell.method, cell.task, evaluations, cell.model, cell.seed, cell.id, cell.sources, params_of(spec), spec.made_of
    )


# Adopted cells


def evaluated_alike(adopted: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Return whether an adopted cell was evaluated as a cell of the matrix is, both by their parameters."""
    if own.get("axes") or own.get("ruleset", PUBLISHED) != PUBLISHED:
        return False  # it has no value at an axis, and its options were chosen by no rule
    expected = params_without_k(own)
    for key, value in params_without_k(adopted).items():
        of_training = key in ("method", TRAINER) or key.startswith("method.")
        if not of_training and expected.get(key) != value:
            return False
    return True


def is_adopted_and_done(run: Run) -> bool:
    return TRAINER in run.tags and run.tags["status"] == "done"


def of_same_problems(adopted: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Return whether the tasks in two identities have the same problems."""
    return all(adopted.get(part) == own.get(part) for part in ("task", "evaluation_tasks", "problems"))


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


def further_axes(params: Mapping[str, str]) -> list[str]:
    """Return the keys of the axes that a run's configuration names."""
    return params["axes"].split(", ") if params.get("axes") else []


# Runs

Outcome = dict[str, Any]


@contextmanager
def opened_experiment(name: str, uri: str) -> Iterator[Experiment]:
    with reader(uri) as source:
        yield Experiment(source, name, uri)


class Experiment:
    """The runs of an experiment, each requested from the store once."""

    def __init__(self, source: StoreReader, name: str, uri: str) -> None:
        known = source.experiments()
        if name not in known:
            hint = f"; {nearest(name, known)}" if known else ""
            raise UserError(
                f"the MLflow store at {visible_address(uri)} has no experiment {name!r}; `entrobench run` or "
                "`entrobench sync` makes it" + hint
            )
        self.source, self.name, self.uri = source, name, uri
        self.summaries: list[Run] = []
        self.runs: list[Run] = []  # of cells
        for run in source.runs(known[name]):
            if run.tags.get(KIND) == SUMMARY:
                self.summaries.append(run)
            elif run.tags.keys() >= OF_CELLS:
                self.runs.append(run)
        self.outcomes: dict[str, Outcome] = {}
        self.id = known[name]

    @property
    def done(self) -> dict[str, Run]:
        """The run of each cell that is done: its newest complete attempt."""
        # Runs have the oldest first, so that of several of one cell the newest is kept; `newest` relies on it, too.
        return {run.tags["cell"]: run for run in self.runs if run.tags.get("status") == "done"}

    @property
    def newest(self) -> dict[str, Run]:
        """The run of each cell that has begun: its newest complete attempt, or else the newest."""
        latest = {run.tags["cell"]: run for run in self.runs}
        return latest | self.done

    @cached_property
    def copies(self) -> dict[str, Outcome]:
        """The outcomes in the summaries, by digest, without copies whose digest is wrong."""
        copies: dict[str, Outcome] = {}
        for text in self.source.texts(self.summaries, OUTCOMES):
            copies |= parsed_object(text)
        return {digest: copy for digest, copy in copies.items() if identities.hash_of(copy) == digest}

    def board_of(self, config: Config, matrix: Sequence[Cell]) -> Board:
        """Return the matrix of a configuration, with the cells of other trainers that it may be compared with."""
        adopted = [run for run in self.runs if is_adopted_and_done(run)]
        return Board.of_config(config, matrix).with_adopted(adopted, self.specs(adopted), matrix).named()

    def boards(self) -> list[Board]:
        """Return the matrices of the experiment, that of the newest run first."""
        texts = self.source.texts(self.summaries, FILE)
        boards = [Board.of_json(text).named() for text in texts if text is not None]
        if not boards:
            raise UserError(
                f"the experiment {self.name!r} at {visible_address(self.uri)} holds no table; `entrobench run` writes "
                "it at its end, and `entrobench sync` at once"
            )
        ages = {run.tags["cell"]: number for number, run in enumerate(self.runs)}
        return sorted(boards, key=lambda board: max(ages.get(cell.cell, -1) for cell in board.expected), reverse=True)

    def specs(self, runs: Sequence[Run]) -> list[CellSpec | None]:
        return [
            None if text is None else CellSpec.parse(text, Path(f"{SPEC} of the run {run.name!r} of {self.name!r}"))
            for run, text in zip(runs, self.source.texts(runs, SPEC), strict=True)
        ]

    def outcomes_of(self, cells: Collection[str]) -> dict[str, Outcome]:
        """Return the outcomes of those among these cells that are done.

        Summaries have copies of many outcomes in one file, since a server is slow with many files.
        """
        done = self.done
        missing = []
        for cell in cells:
            if cell not in done or cell in self.outcomes:
                continue
            run = done[cell]
            copy = self.copies.get(run.tags.get(OUTCOME_TAG, ""))
            if copy is None:
                missing.append(run)
            else:
                self.outcomes[cell] = copy
        for run, text in zip(missing, self.source.texts(missing, OUTCOME), strict=True):
            if text is None:
                raise UserError(f"the MLflow run of cell {run.tags['cell']} has no {OUTCOME} among its artifacts")
            outcome = parsed_object(text)
            # A file with another digest than the run's tag is not the outcome of this run.
            if OUTCOME_TAG not in run.tags or identities.hash_of(outcome) == run.tags[OUTCOME_TAG]:
                self.outcomes[run.tags["cell"]] = outcome
        outcomes = {cell: self.outcomes[cell] for cell in cells if cell in self.outcomes}
        check_one_version([done[cell] for cell in outcomes])
        return outcomes


def check_one_version(runs: Sequence[Run]) -> None:
    """Refuse cells of two versions of a method or a task, as two packs may hold them."""
    cells: dict[tuple[str, str], str] = {}  # by component and digest
    for run in runs:
        for name, digest in (sources_in(run.tags) or {}).items():
            if len(digest) == DIGITS:  # those of earlier versions are of whole files
                cells.setdefault((name, digest), run.tags["cell"])
    first: dict[str, str] = {}
    for (name, _), cell in cells.items():
        if name in first:
            raise UserError(
                f"cells {first[name]} and {cell} are of two versions of {name}, whose numbers make no table together"
            )
        first[name] = cell


def parsed_object(text: bytes | None) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one if the file is missing or damaged."""
    try:
        value = json.loads(text or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# Missing cells


def missing_sentences(board: Board, experiment: Experiment) -> list[str]:
    """Return sentences on cells that are not done, and on information that is missing."""
    newest = experiment.newest
    counts = Counter(newest[cell.cell].tags["status"] if cell.cell in newest else NO_RUN for cell in board.expected)
    sentences = []
    if counts["done"] < len(board.expected):
        listed = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
        sentences.append(f"Of {plural(len(board.expected), 'cell')}: {listed}.")
    if all(cell.method != board.baseline for cell in board.expected):
        sentences.append(f"No cell is of the baseline {board.baseline}, so nothing is compared with it.")
    return sentences + runs_left_out(board, experiment)


def runs_left_out(board: Board, experiment: Experiment) -> list[str]:
    """Return a sentence on the runs of earlier versions of the matrix's cells."""
    cells = {cell.cell for cell in board.expected}
    present = {run_key(cell.params): cell.sources or {} for cell in board.expected}
    edited, names = 0, set[str]()
    for run in experiment.runs:
        sources = present.get(run_key(run.params))
        if sources is None and is_adopted_and_done(run):
            alike = [cell.sources or {} for cell in board.expected if evaluated_alike(run.params, cell.params)]
            recorded = sources_in(run.tags) or {}
            sources = {name: alike[0].get(name, "") for name in recorded} if alike else None
        if sources is not None and run.tags["cell"] not in cells:
            edited += 1
            names.update(edited_components(sources_in(run.tags) or {}, sources))
    if not edited:
        return []
    whose = f" of {', '.join(sorted(names))}" if names else ""
    verb = "is" if edited == 1 else "are"
    return [f"{plural(edited, 'run')} of an earlier version{whose} {verb} left out."]


def run_key(params: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return a key that all versions of a cell have in common."""
    return frozenset(params_without_k(params).items())
