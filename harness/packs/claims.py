"""Comparison of the claims in a pack with each other: names, K, seeds, cells, steps and evaluations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import baselines
import tasks
from harness.base import identities
from harness.base.errors import UserError, shown
from harness.base.schema import typed
from harness.cells import evaluations
from harness.cells.evaluations import evaluation_due, evaluation_path, pass_at_k, stored_answers_digest
from harness.cells.log import MetricsLog, collapse, last_step
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.config.sections import Eval
from harness.methods.composition import Method
from harness.packs.protocol import Protocol, protocol_sections
from harness.rollout import models
from harness.table.board import AXES, Board, Expected
from harness.tracking.sync import params_of
from tasks import Task
from tasks.scoring import powers_of_two

HEADLINE = "eval.k"  # a parameter by which stored answers are read, which a cell's record may have of an earlier run


# The names of a cell


class Library:
    """Methods and tasks by name, with the problems; with the plugins that the reader names, not the pack."""

    def __init__(self, plugins: Sequence[str]) -> None:
        self.plugins = list(plugins)
        self.methods = baselines.table(self.plugins)
        self.tasks: dict[str, Task] = {}
        self.known: dict[tuple[str, str], dict[str, tasks.Problem]] = {}

    def task(self, spec: str) -> Task:
        if spec not in self.tasks:
            self.tasks[spec] = tasks.build_task(spec, self.plugins)
        return self.tasks[spec]

    def problems(self, spec: str, split: str) -> dict[str, tasks.Problem]:
        """Return the problems of a split in their order, by their names."""
        if (spec, split) not in self.known:
            self.known[spec, split] = {problem.id: problem for problem in self.task(spec).problems(split)}
        return self.known[spec, split]


def other_names(spec: CellSpec, library: Library) -> tuple[list[str], list[str]]:
    """Return how the names of a cell contradict its identity, and which of them cannot be compared, as sentences."""
    wrong, unknown = [], []
    identity, key = spec.identity, spec.key
    if identity["seed"] != key.seed:
        wrong.append(f"its seed is {key.seed}, and that of its identity {identity['seed']}")
    try:
        method = Method.of(key.method, library.methods, spec.config.method_options)
        if not contains(method.identity(spec.config.train.lr), identity["method"]):
            wrong.append(f"its identity is not that of the method {shown(key.method)}")
    except UserError as error:
        unknown.append(f"the method {key.method} is not available here ({error})")
    written = [(key.task, identity["task"])]
    written += zip(spec.config.eval.tasks or [key.task], identity["evaluation_tasks"], strict=True)
    for name, of_identity in written:
        try:
            own = identities.component_identity(library.task(name))
        except UserError as error:
            unknown.append(f"the task {name} is not available here ({error})")
            continue
        if not contains([own], [of_identity]):
            wrong.append(f"its identity is not that of the task {shown(name)}")
    # The names of downloaded models and of folders are the author's; a recipe defines the model.
    if "recipe" in identity["model"]:
        try:
            if models.resolve(key.model).identity() != identity["model"]:
                wrong.append(f"its identity is not that of the model {shown(key.model)}")
        except UserError:
            wrong.append(f"its identity has a recipe, and {shown(key.model)} is no model with one")
    return wrong, unknown


def contains(present: Sequence[Mapping[str, Any]], recorded: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether recorded components are the present ones, which may have options that are newer than the record.

    An evaluation's `name` follows from its options.
    """
    if len(present) != len(recorded):
        return False
    for own, theirs in zip(present, recorded, strict=True):
        if any(key not in own or own[key] != value for key, value in theirs.items() if key != "name"):
            return False
    return True


def evaluation_specs(spec: CellSpec) -> dict[str, str]:
    """Return the specs of the evaluation tasks, by the names of their evaluations."""
    named = {}
    written = spec.config.eval.tasks or [spec.key.task]
    for each, identity in zip(written, spec.identity["evaluation_tasks"], strict=True):
        # An evaluation is named in the identity if it has options, and else like its task.
        named[identity.get("name", each.partition("(")[0].strip())] = each
    return named


# The steps of a cell


def other_records(folder: Path, spec: CellSpec) -> Iterator[str]:
    """Yield how the steps, the evaluations and the state of a cell contradict each other, as sentences."""
    lines = MetricsLog(folder).read()
    last = last_step(lines, spec.config)
    if [line["step"] for line in lines] != list(range(last + 1)):
        yield f"metrics.jsonl does not hold the steps 0 to {last}"
        return
    collapsed = collapse(lines, spec.config.stop.entropy_below)
    if State.read(folder).collapsed != collapsed:
        yield f"its state has the collapse {State.read(folder).collapsed}, and its entropies {collapsed}"
    expected = set()
    for step in range(last + 1):
        if evaluation_due(spec.config, step, last):
            expected |= {evaluation_path(folder, name, step) for name in evaluation_specs(spec)}
    present = set((folder / evaluations.FOLDER).glob("*.json"))
    for path in sorted(expected - present):
        yield f"{path.name} is missing: it is evaluated at that step"
    for path in sorted(present - expected):
        yield f"{path.name} is of a step or a task at which it is not evaluated"
    for path in sorted(present & expected):
        record = evaluations.read_evaluation(path)
        if path != evaluation_path(folder, record["task"], record["step"]):
            yield f"{path.name} holds the evaluation of {record['task']} at step {record['step']}"
            continue
        yield from other_scores(path, record, lines[record["step"]]["metrics"], spec)


def other_scores(path: Path, record: Mapping[str, Any], logged: Mapping[str, float], spec: CellSpec) -> Iterator[str]:
    """Yield how the counts of an evaluation contradict the scores that the cell logged with it, as sentences."""
    samples = spec.config.eval.of(record["task"]).samples
    if {len(row) for row in record["right"]} != {samples}:
        yield f"{path.name} does not hold {samples} samples of each problem"
        return
    yield from other_values(scores_of_counts(record), record, logged, path.name)


def other_values(
    scores: Mapping[str, float], record: Mapping[str, Any], logged: Mapping[str, float], name: str
) -> Iterator[str]:
    """Yield how the scores of an evaluation, whose file has this name, differ from those logged, as sentences."""
    prefix = f"eval/{record['task']}/"
    if missing := [key for key in scores if prefix + key not in logged]:
        yield f"{name} has no {missing[0]} among the metrics of its step"
        return
    for key, score in scores.items():
        value = logged[prefix + key]
        if not math.isclose(score, value, rel_tol=evaluations.ROUNDING):
            yield f"its answers give {prefix}{key} = {score:.6g}, and metrics.jsonl has {value:.6g}"


def scores_of_counts(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores that follow from the counts of an evaluation."""
    right_J = np.array(record["right"]).sum(axis=1)
    samples, distinct_J = len(record["right"][0]), np.array(record["right_distinct"])
    scores = {"avg": float(np.mean(right_J / samples)), "right_distinct": float(distinct_J.mean())}
    for k in powers_of_two(samples):
        scores[f"pass@{k}"] = float(np.mean(pass_at_k(samples, right_J, k)))
    if record["solutions"]:
        scores["coverage"] = float(np.mean(distinct_J / np.array(record["solutions"])))
    return scores


# Cells among each other


def copies(cells: Sequence[tuple[CellSpec, Path]]) -> Iterator[tuple[str, str]]:
    """Yield a sentence on each cell whose answers are those of a cell with another seed, with its id."""
    known: dict[tuple[str, ...], CellSpec] = {}
    attempts: dict[str, CellSpec] = {}
    for spec, folder in cells:
        made = Made.read(folder)
        if made is not None:
            first = attempts.setdefault(made.attempt, spec)
            if first is not spec:
                yield spec.id, f"its attempt is that of {first.key.run_name}"
        digests = []
        for path, record in evaluations.all_evaluations(folder):
            # Greedy answers of one model are equal with every seed.
            if spec.config.eval.of(record["task"]).temperature > 0:
                digests.append(digest_of(path, record))
        if len(digests) > 1 and "" not in digests:
            first = known.setdefault(tuple(digests), spec)
            if first.key.seed != spec.key.seed:
                yield spec.id, f"its answers are those of {first.key.run_name}, byte for byte"


def digest_of(path: Path, record: Mapping[str, Any]) -> str:
    """Return the digest of the answers of an evaluation; empty if they were left out without one."""
    answers = record.get("answers") or stored_answers_digest(path)
    return str(answers["sha256"]) if answers else ""


# The matrix


def other_matrix(board: Board, protocol: Protocol, specs: Iterable[CellSpec]) -> Iterator[str]:
    """Yield how the expected cells of a pack contradict its protocol and its cells, as sentences."""
    definition, config = protocol.definition, board.config
    if sorted(config.get("seeds", [])) != definition["seeds"] or config.get("axes", {}) != definition["axes"]:
        yield "its seeds or its further axes are not those of the protocol"
    if protocol_sections(config) != {name: definition[name] for name in protocol_sections(config)}:
        yield "its settings are not those of the protocol"
    axes = [config.get(f"{axis}s", []) for axis in AXES]
    of_axes = set()
    for values in itertools.product(*axes, *config.get("axes", {}).values()):
        of_axes.add(tuple(map(str, values)))
    for place in sorted(of_axes ^ {cell.place for cell in board.expected}):
        yield f"its expected cells are not those of its axes ({' '.join(place)})"
    evaluation = typed(Eval(), definition["eval"], "eval.")
    for task, k in board.ks.items():
        if evaluation.of(task).k != k:
            yield f"its K of {task} is {k}, and {evaluation.of(task).k} in the protocol"
    expected = {cell.cell: cell for cell in board.expected}
    if board.baseline != config.get("baseline"):
        yield f"its baseline is {shown(board.baseline)}, and {shown(config.get('baseline'))} in its configuration"
    for spec in specs:
        if spec.id not in expected:
            yield f"it does not name {spec.key.run_name} ({spec.id})"
            continue
        if list(expected[spec.id].eval_tasks) != list(evaluation_specs(spec)):
            yield f"its evaluations of {spec.key.run_name} are not those of the cell"
        if claims_of(expected[spec.id]) != claims_of_spec(spec):
            yield f"its values of {spec.key.run_name} ({spec.id}) are not those of the cell"
        if spec.settings.get("baseline") != board.baseline:
            yield f"its baseline is {shown(board.baseline)}, and that of {spec.key.run_name} another one"


def claims_of(cell: Expected) -> dict[str, Any]:
    params = {key: value for key, value in cell.params.items() if key != HEADLINE}
    return {"factors": cell.place[: len(AXES)], "params": params, "made_of": cell.made_of}


def claims_of_spec(spec: CellSpec) -> dict[str, Any]:
    params = {key: value for key, value in params_of(spec).items() if key != HEADLINE}
    return {"factors": tuple(map(str, spec.key.factors().values())), "params": params, "made_of": spec.made_of}
