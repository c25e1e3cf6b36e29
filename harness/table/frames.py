"""A matrix as a pandas frame of its cells with their answers, from which all tables and files are computed.

**cells**: a row for each cell and each task that it is evaluated on, in the order of the matrix, done or not.

| column | holds |
| --- | --- |
| method, task, model, setting, seed | the key of the cell; `setting` has (axis, value) pairs of further axes |
| evaluated | the evaluation task |
| cell | the hash of the cell; empty if neither a configuration nor a run gives it |
| moment | whose answers count: AFTER training, or BEFORE it (rows of the base model) |
| state | done, failed, running ..., or "without a run" |
| made_of | the method with compositions written out; empty if it names none |
| options | the spec that tuning chose for the method; empty if it was not tuned |
| entropy_first, entropy_last | at the first and at the last training step, in nats a token |
| length | of the last evaluation, as the next three: tokens of a response |
| distinct | share of the responses to a problem that are distinct |
| distinct_answers | distinct answers to a problem, per response |
| after_answer | share of responses with text after the answer |
| dropped | share of tokens whose gradient did not count, mean over the steps |
| hours, tokens | of work of all devices of the cell (`device`); sampled while training |
| collapsed | the step at which the cell ended early, because its entropy was too low |
| flags | sentences about the problems, and about training without a signal |
| device, version | cpu or cuda; version and commit of the code |
| harness, base_model | the hash of the harness, the digest of the base model |
| libraries, rounding | versions of what computes; instruction set, threads, micro-batch, vLLM's runner |
| ruleset | published or tuned: how the options of methods were chosen |
| checked | of a pack: reported, judged again or replayed |
| trainer | `trl`, if `train.backend` is not our own |

A missing number is NaN, a missing text is empty. Of a cell that is not done, only its key, its state and `made_of` are
known.

    MLflow -> Experiment (runs, outcomes) -> Frames -> LeaderboardRow -> table, md, csv, json, MLflow, page, Python
                                                    -> Comparison     -> table, md, csv, json, LaTeX
                                                    -> export         -> Parquet

Methods are compared within a table: the rows with the same TABLE columns. All cells of a table answered the same
problems, so that `Frames.counts` gives a matrix of seeds by problems, the form in which every estimate is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.base.errors import UserError
from harness.cells.evaluations import pass_at_k, right_distinct
from harness.cells.log import NO_SIGNAL
from harness.cells.provenance import BASE_MODEL_TAG, CHECKED_TAG, COMMIT_DIGITS, HARNESS_TAG, ROUNDING_TAG, VERSION_TAG
from harness.cells.state import STOPPED
from harness.config import OWN, PUBLISHED, YAML
from harness.rollout.digests import SHOWN
from harness.table.board import NO_RUN, Expected, Experiment
from harness.table.statistics import Floats

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pandas import DataFrame

    from harness.tracking.reader import Run

BASE_MODEL = "base model"  # the method of the rows of the model before any training
BEFORE, AFTER = "before", "after"  # moments
DONE = "done"  # a state

TABLE = ["task", "evaluated", "model", "setting"]  # methods are compared within these
ROW = ["method", *TABLE]  # cells with the same values are the seeds of one row of the leaderboard

KEYS = ("method", "task", "model", "setting", "seed", "evaluated", "cell", "moment", "state", "made_of", "options")
EVALUATION_MEASURES = ("length", "distinct", "distinct_answers", "after_answer")
CELL_MEASURES = ("dropped", "hours", "tokens")
NUMBERS = ("entropy_first", "entropy_last", *EVALUATION_MEASURES, *CELL_MEASURES, "collapsed")
TEXTS = ("device", "version", "harness", "base_model", "libraries", "rounding", "ruleset", "checked", "trainer")
COLUMNS = (*KEYS, *NUMBERS, "flags", *TEXTS)

Axes = tuple[str, str, str, tuple[tuple[str, str], ...]]  # the values of TABLE
AnswerKey = tuple[str, str, str]  # cell, evaluated, moment


@dataclass(frozen=True)
class Answers:
    """The answers of a cell to one task at one moment: a value for each problem, in the order of the problem set."""

    problem: Sequence[str]  # its name in the task
    right: NDArray[np.int64]  # how many of its samples were right
    samples: NDArray[np.int64]  # how many were drawn
    right_distinct: Floats  # how many distinct right answers they hold
    solutions: Floats  # how many right answers the problem has; NaN if the task cannot count them


@dataclass(frozen=True)
class Frames:
    """The cells of a matrix, done or not, and the answers of the done ones."""

    cells: DataFrame
    answers: Mapping[AnswerKey, Answers]

    def answers_of(self, cells: DataFrame) -> list[Answers]:
        """Return the answers of each of these finished cells."""
        keys = zip(cells["cell"], cells["evaluated"], cells["moment"], strict=True)
        return [self.answers[key] for key in keys]

    def counts(self, cells: DataFrame, column: str) -> np.ndarray:
        """Return a column of the answers by seed and problem, with a line for each of these finished cells."""
        return np.array([vars(answers)[column] for answers in self.answers_of(cells)])

    def scores(self, cells: DataFrame, k: int | None) -> Floats:
        """Return Avg@K (k is None) or Pass@k by seed and problem."""
        right_SJ = self.counts(cells, "right")
        # All cells of a table have the same number of samples: `read_frames` has refused any other.
        samples = int(self.counts(cells.iloc[:1], "samples")[0, 0])
        if k is None:
            return right_SJ / samples
        if k > samples:  # a summary may come from another person
            raise UserError(f"the K of Pass@K is {k}, and its cells have {samples} samples of each problem")
        return pass_at_k(samples, right_SJ, k)

    @cached_property
    def rows(self) -> dict[tuple[str, Axes], DataFrame]:
        """The cells of each row of the leaderboard, by method and table, in the order of their first cells."""
        groups = self.cells.groupby(ROW, sort=False)
        return {(method, tuple(axes)): cells for (method, *axes), cells in groups}

    @cached_property
    def tables(self) -> dict[Axes, dict[str, DataFrame]]:
        """The cells of each method, by table."""
        tables: dict[Axes, dict[str, DataFrame]] = {}
        for (method, axes), cells in self.rows.items():
            tables.setdefault(axes, {})[method] = cells
        return tables

    def any_done(self) -> bool:
        return bool((self.cells["state"] == DONE).any())


def done_cells(cells: DataFrame) -> DataFrame:
    return cells[cells["state"] == DONE]


def label_of(axes: Axes, tables: Collection[Axes]) -> str:
    """Name an evaluation task, and the training task where that differs within the matrix."""
    task, evaluated, *_ = axes
    trained_on = {other_task for other_task, other_evaluated, *_ in tables if other_evaluated == evaluated}
    return f"{evaluated} (trained on {task})" if len(trained_on) > 1 else evaluated


# Reading


def read_frames(experiment: Experiment, expected: Sequence[Expected], baseline: str) -> Frames:
    """Return the frames of the expected cells that MLflow has; refuse cells that cannot be compared."""
    outcomes = experiment.outcomes_of([cell.cell for cell in expected])
    newest, runs = experiment.newest, experiment.done
    rows: list[dict[str, Any]] = []
    answers: dict[AnswerKey, Answers] = {}
    for cell in expected:
        outcome = outcomes.get(cell.cell)
        state = newest[cell.cell].tags["status"] if cell.cell in newest else NO_RUN
        if outcome is None and state == DONE:
            state = NO_RUN  # an outcome of another digest than the run's tag is not of this cell: it has no numbers
        for evaluated in cell.eval_tasks:
            row = {**key_columns(cell), "evaluated": evaluated, "state": state}
            if state == STOPPED:
                row["flags"] = [f"{cell.method} seed {cell.seed}: {newest[cell.cell].tags['reason']}"]
            if outcome is not None:
                if evaluated not in outcome["tasks"]:
                    raise UserError(
                        f"the MLflow run of cell {cell.cell} has no evaluation of {evaluated!r} among its artifacts"
                    )
                record = outcome["tasks"][evaluated]
                row |= {"state": DONE, **measures_of(outcome, record, runs[cell.cell])}
                if why := outcome.get("untrained"):
                    row["flags"] = [*row["flags"], f"{cell.method} seed {cell.seed}: {NO_SIGNAL} ({why})"]
                if ended := outcome.get("ended"):
                    row["flags"] = [*row["flags"], f"{cell.method} seed {cell.seed}: {ended}"]
                for moment, of_moment in answers_in(record, f"{evaluated} of cell {cell.cell}").items():
                    answers[cell.cell, evaluated, moment] = of_moment
            rows.append(row)
    frames = Frames(cells_frame(rows), answers)
    check_all_comparable(frames, baseline)
    return frames


def key_columns(expected: Expected) -> dict[str, Any]:
    trainer = expected.params.get("train.backend", OWN)
    if trainer == OWN:
        trainer = ""
    return {
        "method": expected.method,
        "task": expected.task,
        "model": expected.model,
        "setting": tuple((axis, YAML.get(value, value)) for axis, value in expected.setting.items()),
        "seed": expected.seed,
        "cell": expected.cell,
        "moment": AFTER,
        "made_of": expected.made_of or "",
        "options": expected.options,
        "ruleset": expected.params.get("ruleset", PUBLISHED),
        "trainer": trainer,
    }


def measures_of(outcome: Mapping[str, Any], record: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return the columns of a cell that is done, apart from its key."""
    first, last = outcome["entropy"] or (None, None)
    measures = {
        "entropy_first": first,
        "entropy_last": last,
        "collapsed": int(run.tags["collapsed"]) if run.tags.get("collapsed") else None,
        "flags": list(record["flags"]),
        "device": run.tags.get("device", ""),
        "version": version_text(run.tags),
        "harness": run.tags.get(HARNESS_TAG, ""),
        "base_model": run.tags.get(BASE_MODEL_TAG, "")[:SHOWN],
        "libraries": tags_text(run.tags, VERSION_TAG),
        "rounding": tags_text(run.tags, ROUNDING_TAG),
        "checked": run.tags.get(CHECKED_TAG, ""),
    }
    measures |= {name: record[name] for name in EVALUATION_MEASURES}
    return measures | {name: outcome[name] for name in CELL_MEASURES}


def tags_text(tags: Mapping[str, str], beginning: str) -> str:
    """Return the tags that begin alike as one text, such as `python 3.13.1, torch 2.9.0`."""
    names = sorted(key for key in tags if key.startswith(beginning))
    return ", ".join(f"{key.removeprefix(beginning)} {tags[key]}" for key in names)


def version_text(tags: Mapping[str, str]) -> str:
    """Return the version and the commit of the code of a run, if they are known."""
    changed_since = "+" if tags.get("code.dirty") == "true" else ""
    commit = tags.get("code.commit", "")[:COMMIT_DIGITS] + changed_since
    return " ".join(filter(None, (tags.get("code.version"), commit)))


def answers_in(record: Mapping[str, Any], name: str) -> dict[str, Answers]:
    """Return the answers to one task by moment: after training, and before it if they were recorded."""
    moments = {AFTER: (record["right"], right_distinct(record, name))}
    if record["before"] is not None:
        moments[BEFORE] = (record["before"], record["right_distinct_before"])
    unknown = [np.nan] * len(record["problems"])
    answers = {}
    for moment, (lines, distinct) in moments.items():
        answers[moment] = Answers(
            problem=record["problems"],
            right=np.array([line.count("1") for line in lines]),  # a line has 1 or 0 for each sample
            samples=np.array(list(map(len, lines))),
            right_distinct=np.array(unknown if distinct is None else distinct, dtype=float),
            solutions=np.array(unknown if record["solutions"] is None else record["solutions"], dtype=float),
        )
    return answers


def cells_frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return the frame of cells; a column that a row lacks is missing there."""
    import pandas

    columns: dict[str, Any] = {}
    defaults = {**dict.fromkeys(NUMBERS), "flags": ()}  # of other columns an empty text; each row has a seed
    types = {**dict.fromkeys(NUMBERS, "float64"), "seed": "int64"}
    for name in COLUMNS:
        values = [row.get(name, defaults.get(name, "")) for row in rows]
        columns[name] = pandas.Series(values, dtype=types.get(name, "object"))
    return pandas.DataFrame(columns)


# The base model, and what is comparable


def with_base_models(frames: Frames) -> Frames:
    """Return the frames with the base model before the first method of each table, as if it were a method.

    Within a seed all methods begin from the same answers, so the first cell that has them counts. A table without any
    evaluation before training has no base model.
    """
    import pandas

    if not frames.rows:
        return frames
    pieces, begun_tables = [], set()
    for (_, axes), cells in frames.rows.items():
        if axes not in begun_tables:
            begun_tables.add(axes)
            base = base_model_cells(frames, frames.tables[axes])
            if not done_cells(base).empty:
                pieces.append(base)
        pieces.append(cells)
    return Frames(pandas.concat(pieces, ignore_index=True), frames.answers)


def base_model_cells(frames: Frames, methods: Mapping[str, DataFrame]) -> DataFrame:
    """Return a row for each seed of a table, with the evaluation before the first step if a cell has one."""
    rows = [row for cells in methods.values() for row in cells.to_dict("records")]
    by_seed: dict[int, dict[str, Any]] = {}
    for row in rows:
        if (row["cell"], row["evaluated"], BEFORE) in frames.answers:
            by_seed.setdefault(row["seed"], before_training(row))
    # The other seeds are expected of the base model, too, but have no evaluation before training so far.
    for row in rows:
        by_seed.setdefault(row["seed"], before_training(row) | {"state": NO_RUN})
    return cells_frame(list(by_seed.values()))


def before_training(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the base model that a cell began from."""
    kept = (*TABLE, "seed", "cell", "state", "entropy_first", "flags", "version", "harness", "base_model", "ruleset")
    # The entropy of the first step is that of the model before its first update.
    of_cell = {name: row[name] for name in (*kept, "libraries", "rounding")}
    of_training = f"{row['method']} seed {row['seed']}: "
    flags = [flag for flag in row["flags"] if not flag.startswith(of_training)]
    return of_cell | {"method": BASE_MODEL, "moment": BEFORE, "flags": flags}


def check_comparable(frames: Frames, cells: DataFrame, reference: DataFrame) -> None:
    """Refuse cells that answered other problems than the reference: no mean or difference of them makes sense."""
    done = [done_cells(reference), done_cells(cells)]
    rows = [row for frame in done for row in frame.to_dict("records")]
    answers = [of_cell for frame in done for of_cell in frames.answers_of(frame)]
    for row, own in zip(rows[1:], answers[1:], strict=True):
        first, theirs = rows[0], answers[0]
        if own.problem != theirs.problem or not np.array_equal(own.samples, theirs.samples):
            raise UserError(
                f"{row['method']} seed {row['seed']} was not evaluated on the same problems and samples of "
                f"{row['evaluated']} as {first['method']} seed {first['seed']}: {shape_text(own)} and "
                f"{shape_text(theirs)}"
            )


def shape_text(answers: Answers) -> str:
    problems = answers.problem
    return f"{len(problems)} problems x {answers.samples[0]} samples beginning with {problems[0]!r}"


def check_all_comparable(frames: Frames, baseline: str) -> None:
    """Check each row against the baseline of its table, or against its own first seed where there is none."""
    for (_, axes), cells in frames.rows.items():
        check_comparable(frames, cells, frames.tables[axes].get(baseline, cells))
    for methods in frames.tables.values():
        check_one_ruleset(methods)


def check_one_ruleset(methods: Mapping[str, DataFrame]) -> None:
    """Refuse a table in which the options of some methods were tuned and those of others were not."""
    by_ruleset: dict[str, str] = {}
    for method, cells in methods.items():
        for ruleset in cells["ruleset"]:
            by_ruleset.setdefault(ruleset, method)
    if len(by_ruleset) > 1:
        listed = " and ".join(f"{ruleset} ({method})" for ruleset, method in by_ruleset.items())
        raise UserError(f"one table has rows of one ruleset, and these cells have {listed}; read each matrix alone")
