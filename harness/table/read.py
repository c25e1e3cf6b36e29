"""Reads from MLflow what the cells of a matrix have to say."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from harness.base import identities
from harness.base.addresses import visible_address
from harness.base.errors import UserError, nearest
from harness.cells.outcome import FILE, TAG, right_distinct
from harness.cells.provenance import BASE_MODEL_TAG, HARNESS_TAG, sources_in
from harness.cells.spec import FILE as SPEC
from harness.cells.spec import CellSpec
from harness.rollout.digests import SHOWN
from harness.statistics import Floats, pass_at_k
from harness.table import board
from harness.table.board import Board
from harness.tracking.reader import reader
from harness.tracking.runs import Reader, Run

COMMIT = 8  # characters of a commit that are shown


@dataclass(frozen=True)
class Result:
    """The answers of one cell to the problems of one task."""

    problems: list[str]
    right_JN: np.ndarray
    entropy: tuple[float, float]  # at the first and at the last training step
    flags: list[str]
    sources: Mapping[str, str] | None  # hashes of the source that made them, by component; None: nobody noted them
    before_JN: np.ndarray | None = None  # of the model before any training
    length: float | None = None  # tokens of a response
    distinct: float | None = None  # share of a problem's responses
    distinct_answers: float | None = None  # of a problem, per response
    after_answer: float | None = None  # share of responses that go on after their answer
    right_distinct_J: np.ndarray | None = None  # distinct right answers to each problem
    before_right_distinct_J: np.ndarray | None = None  # of the model before any training
    solutions_J: np.ndarray | None = None  # right answers that each problem has; None where the task cannot count them
    dropped: float | None = None  # share of tokens whose gradient did not count, mean over the steps
    hours: float | None = None  # of work of all its devices: GPUs, or cores where there are none
    tokens: float | None = None  # sampled while training
    device: str = ""
    version: str = ""  # of the code that made them
    collapsed: int | None = None  # the step at which it ended early, since its entropy was too low
    base_model: str = ""  # the first digits of the digest of what it began from; empty if no record says it
    harness: str = ""  # the hash of the harness that made them; empty in records of earlier versions

    def scores(self, k: int | None) -> Floats:
        """Returns the Avg@K of each problem over all samples (k is None), or its Pass@k."""
        samples = self.right_JN.shape[1]
        return self.right_J / samples if k is None else pass_at_k(samples, self.right_J, k)

    @property
    def coverage_J(self) -> Floats | None:
        """The share of the right answers to each problem that were given."""
        if self.right_distinct_J is None or self.solutions_J is None:
            return None
        return self.right_distinct_J / self.solutions_J

    @cached_property
    def right_J(self) -> np.ndarray:
        """Returns how many samples of each problem were right."""
        return self.right_JN.sum(axis=1)


Results = Mapping[str, dict[str, Result]]  # by cell and evaluation task


class Experiment:
    """The runs of an experiment, each asked for once."""

    def __init__(self, source: Reader, name: str, uri: str) -> None:
        known = source.experiments()
        if name not in known:
            hint = f"; {nearest(name, known)}" if known else ""
            raise UserError(
                f"the MLflow store at {visible_address(uri)} has no experiment {name!r}; `entrobench run` or "
                "`entrobench sync` makes it" + hint
            )
        self.source, self.name, self.uri = source, name, uri
        runs = source.runs(known[name])
        self.summaries = [run for run in runs if run.tags.get(board.KIND) == board.SUMMARY]
        self.runs = [run for run in runs if run.tags.keys() >= board.OF_CELLS]
        self.outcomes: dict[str, dict[str, Any]] = {}

    @property
    def done(self) -> dict[str, Run]:
        """Returns the run of each cell that is done: its newest complete attempt."""
        return {run.tags["cell"]: run for run in self.runs if run.tags.get("status") == "done"}

    @property
    def newest(self) -> dict[str, Run]:
        """Returns the run of each cell that has begun: its newest complete attempt, or else the newest."""
        return {run.tags["cell"]: run for run in self.runs} | self.done

    @cached_property
    def copies(self) -> dict[str, Any]:
        """Returns the outcomes that the summaries hold, by digest."""
        found: dict[str, Any] = {}
        for text in self.source.texts(self.summaries, board.OUTCOMES):
            found |= whole(text)
        return {digest: each for digest, each in found.items() if identities.hash_of(each) == digest}

    def boards(self) -> list[Board]:
        """Returns the matrices that the experiment holds runs of, the newest first."""
        texts = self.source.texts(self.summaries, board.FILE)
        found = [Board.of_json(text) for text in texts if text is not None]
        told = {each.cell for one in found for each in one.expected}
        settings = {board.settings_of(each.params) for one in found for each in one.expected[:1]}
        untold = [run for run in self.runs if run.tags["cell"] not in told]
        others = [run for run in untold if board.settings_of(run.params) not in settings]
        if others:
            outcomes = self.read([run.tags["cell"] for run in others])
            found += board.of_runs(self.name, others, outcomes, self.config_of)
        if not found:
            raise UserError(
                f"the experiment {self.name!r} at {visible_address(self.uri)} holds no run that entrobench made, or "
                "all were deleted"
            )
        ages = {run.tags["cell"]: number for number, run in enumerate(self.runs)}
        return sorted(found, key=lambda one: max(ages.get(each.cell, -1) for each in one.expected), reverse=True)

    def config_of(self, run: Run) -> Mapping[str, Any]:
        """Returns the configuration that a run was made by, as plain values; an empty one where the run has none."""
        [spec] = self.specs([run])
        return {} if spec is None else spec.settings

    def specs(self, runs: Sequence[Run]) -> list[CellSpec | None]:
        texts = self.source.texts(runs, SPEC)
        return [
            None if text is None else CellSpec.parse(text, Path(f"{SPEC} of the run {run.name!r} of {self.name!r}"))
            for run, text in zip(runs, texts, strict=True)
        ]

    def others(self, of: Board) -> list[Run]:
        """Returns the runs of cells that a matrix does not have, though they have its settings."""
        cells = {each.cell for each in of.expected}
        settings = {board.settings_of(each.params) for each in of.expected[:1]}
        return [run for run in self.runs if run.tags["cell"] not in cells and board.settings_of(run.params) in settings]

    def read(self, cells: Collection[str]) -> dict[str, dict[str, Any]]:
        """Returns the outcomes of those cells that are done; runs of other cells are of other configurations."""
        done = self.done
        wanted = [done[cell] for cell in cells if cell in done and cell not in self.outcomes]
        if wanted:
            copies = self.copies
            self.outcomes |= {run.tags["cell"]: copies[run.tags[TAG]] for run in wanted if run.tags.get(TAG) in copies}
        missing = [run for run in wanted if run.tags["cell"] not in self.outcomes]
        for run, text in zip(missing, self.source.texts(missing, FILE), strict=True):
            if text is None:
                raise UserError(f"the MLflow run of cell {run.tags['cell']} has no {FILE} among its artifacts")
            found = whole(text)
            if TAG not in run.tags or identities.hash_of(found) == run.tags[TAG]:  # otherwise there is no such outcome
                self.outcomes[run.tags["cell"]] = found
        return {cell: self.outcomes[cell] for cell in cells if cell in self.outcomes}

    def results(self, cells: Collection[str]) -> Results:
        done = self.done
        return {cell: results_of(outcome, done[cell]) for cell, outcome in self.read(cells).items()}


def whole(text: bytes | None) -> dict[str, Any]:
    """Returns what a file holds; nothing where there is none, or where it is no JSON any more."""
    try:
        found = json.loads(text or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def read(uri: str, matrix: str, cells: Collection[str]) -> Results:
    with reader(uri) as source:
        return Experiment(source, matrix, uri).results(cells)


def results_of(outcome: Mapping[str, Any], run: Run) -> dict[str, Result]:
    """Return the results of an outcome by evaluation task."""
    first, last = outcome["entropy"] or (float("nan"), float("nan"))
    return {
        task: Result(
            problems=told["problems"],
            right_JN=answers(told["right"]),
            entropy=(first, last),
            flags=told["flags"],
            sources=sources_in(run.tags),
            before_JN=None if told["before"] is None else answers(told["before"]),
            length=told["length"],
            distinct=told["distinct"],
            distinct_answers=told["distinct_answers"],
            after_answer=told["after_answer"],
            right_distinct_J=np.array(right_distinct(told, f"{task} of cell {run.tags['cell']}")),
            before_right_distinct_J=optional(told["right_distinct_before"]),
            solutions_J=optional(told["solutions"]),
            dropped=outcome["dropped"],
            hours=outcome["hours"],
            tokens=outcome["tokens"],
            device=run.tags.get("device", ""),
            version=version_of(run.tags),
            collapsed=int(run.tags["collapsed"]) if run.tags.get("collapsed") else None,
            base_model=run.tags.get(BASE_MODEL_TAG, "")[:SHOWN],
            harness=run.tags.get(HARNESS_TAG, ""),
        )
        for task, told in outcome["tasks"].items()
    }


def optional(values: Sequence[int] | None) -> np.ndarray | None:
    """Return values as an array, where there are some."""
    return None if values is None else np.array(values)


def version_of(tags: Mapping[str, str]) -> str:
    """Returns the version and the commit of the code that made a run's numbers, as far as they are known."""
    commit = tags.get("code.commit", "")[:COMMIT] + "+" * (tags.get("code.dirty") == "true")
    return " ".join(part for part in (tags.get("code.version"), commit) if part)


def answers(lines: Sequence[str]) -> np.ndarray:
    """Returns the right answers, problem by sample, of lines of 0 and 1."""
    return (np.frombuffer("".join(lines).encode(), np.uint8) - ord("0")).reshape(len(lines), -1).astype(int)


def result_of(results: dict[str, Result], task: str, cell: str) -> Result:
    if task not in results:
        raise UserError(f"the MLflow run of cell {cell} has no evaluation of {task!r} among its artifacts")
    return results[task]
