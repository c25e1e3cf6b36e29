"""Everything that the page shows of a matrix, read from MLflow, and which of it is compared. Imports no torch.

A page is computed from rows of the leaderboard and three frames:

| frame | a row for each | columns |
| --- | --- | --- |
| cells | cell of the matrix, done or not | CELL_DEFAULTS, `where`, `training`, `step` |
| curves | cell, metric and step | CURVES |
| evaluations | cell, evaluation task, step and problem | EVALUATIONS |

`where` is the model with the setting, within which methods are compared; `training` is the training task with it, the
group within which curves may share a figure.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas
from pandas import DataFrame

from harness.base import files
from harness.base.addresses import may_be_written, visible_address
from harness.base.errors import Damaged, UserError
from harness.cells.evaluations import pass_at_k, right_distinct
from harness.cells.provenance import VERSION_TAG
from harness.config import Config, setting_label
from harness.matrix import Cell
from harness.packs.reader import opened_packs
from harness.table.board import Board, Experiment, opened_experiment, runs_left_out
from harness.table.compare import Comparison, comparisons
from harness.table.frames import BASE_MODEL, done_cells, read_frames
from harness.table.leaderboard import LeaderboardRow, leaderboard_rows, place_text
from harness.table.select import check_begun
from harness.table.statistics import Estimate, clipped, crossed_interval, share_interval
from harness.tokens.logged import DRAWN
from harness.tracking.artifacts import artifact_folder
from harness.tracking.reader import Curves, Run
from harness.tracking.store import is_server

Record = dict[str, Any]  # a line of samples/evaluate-*.jsonl, or a part of the page for its template
Samples = Callable[[str, str, int], list[Record]]  # of a cell, an evaluation task and a step

CELL_DEFAULTS: dict[str, Any] = {
    "method": "",
    "task": "",  # of the training
    "model": "",
    "setting": "",  # the values at the further axes of the matrix
    "seed": 0,
    "cell": "",  # its hash; empty if neither a configuration nor a run gives it
    "state": "planned",
    "reason": None,
    "device": "",
    "identity": {},
    "made": {},  # the recorded code and machine
    "folder": None,  # of its files on this machine
    "address": None,  # of its run on an MLflow server
    "times": None,  # of its first and its last record
}
CURVES = ["cell", "metric", "step", "value"]
EVALUATIONS = ["cell", "evaluated", "step", "problem", "right", "samples", "right_distinct"]
OF_CELL = ["cell", "method", "task", "seed", "where", "training"]  # columns of `cells` that the other frames get

QUESTIONS = 3  # problems whose answers are shown next to each other
FORMULA = 40  # characters of an answer that fits into a narrow column
ANSWERS = 16  # distinct responses to a problem that are shown, of each method
LONGEST_ANSWER = 300  # characters; of a longer one the middle is left out


@dataclass(frozen=True)
class ScoreTable:
    """The rows of one evaluation task and one model, after training on one task, which may be compared."""

    title: str
    rows: list[LeaderboardRow]
    answers: DataFrame  # the evaluations of the cells that are done, with OF_CELL
    questions: list[Record]
    comparisons: list[Comparison]  # of both scores, in the order of the rows

    @property
    def k(self) -> int:
        return self.rows[0].k

    @property
    def scores(self) -> DataFrame:
        """The mean scores of each last evaluation, a row for each method and seed."""
        lines = []
        for (method, seed), evaluation in last_answers(self.answers).groupby(["method", "seed"], sort=False):
            right, samples = evaluation["right"].to_numpy(), int(evaluation["samples"].iloc[0])
            line = {"method": method, "seed": seed}
            line["Avg@K"] = float(right.sum() / (len(right) * samples))
            line[f"Pass@{self.k}"] = float(pass_at_k(samples, right, self.k).mean())
            line["Distinct right answers"] = float(evaluation["right_distinct"].to_numpy().mean())
            lines.append(line)
        return DataFrame(lines, columns=["method", "seed", *self.score_names])

    def estimates(self, evaluations: DataFrame) -> dict[str, Estimate]:
        """Return the scores of a method at a step over its seeds and problems, as the table computes them."""
        by_seed = evaluations.pivot(index="seed", columns="problem", values=["right", "right_distinct"])
        right_SJ = by_seed["right"].to_numpy(dtype="int64")
        samples = int(evaluations["samples"].iloc[0])
        distinct_SJ = by_seed["right_distinct"].to_numpy(dtype="float64")
        return {
            "Avg@K": share_interval(right_SJ / samples),
            f"Pass@{self.k}": share_interval(pass_at_k(samples, right_SJ, self.k)),
            "Distinct right answers": clipped(crossed_interval(distinct_SJ), 0, math.inf),
        }

    @property
    def score_names(self) -> list[str]:
        return ["Avg@K", f"Pass@{self.k}", "Distinct right answers"]


@dataclass(frozen=True)
class PageContent:
    """Everything that the page shows of a matrix."""

    name: str
    source: str  # the MLflow store
    command: str | None  # repeats the matrix; None if it is unknown
    baseline: str
    methods: list[str]
    settings: dict[str, Any]  # of the matrix
    rows: list[LeaderboardRow]
    cells: DataFrame
    curves: DataFrame
    tables: list[ScoreTable]
    notes: list[str] = field(default_factory=list)  # on everything that was left out

    @property
    def drawn_methods(self) -> list[str]:
        """The names that a series may have: the methods, and the base model if a table has it."""
        has_base_model = any(row.method == BASE_MODEL for row in self.rows)
        return [*self.methods, BASE_MODEL] if has_base_model else self.methods

    def trainings(self) -> Iterator[tuple[str, DataFrame, DataFrame]]:
        """Yield each training with its cells that are done and their curves."""
        done = done_cells(self.cells)
        curves = done[OF_CELL].merge(self.curves, on="cell")
        for training, cells in done.groupby("training", sort=False):
            yield str(training), cells, curves[curves["training"] == training]


def page_cells(records: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Return the frame of cells; a column that a record lacks has its default."""
    lines = []
    for record in records:
        line = {**CELL_DEFAULTS, **record}
        line["where"] = place_text(line["model"], line["setting"])
        line["training"] = f"{line['task']}, {line['where']}"
        lines.append(line)
    return DataFrame(lines, dtype="object").astype({"seed": "int64"})


def score_tables(
    rows: Sequence[LeaderboardRow], compared: Sequence[Comparison], answers: DataFrame, samples: Samples
) -> list[ScoreTable]:
    rows_by_table: dict[tuple[str, str], list[LeaderboardRow]] = {}
    for row in rows:
        rows_by_table.setdefault((row.task, row.where), []).append(row)
    tables = []
    for (label, where), rows_of_table in rows_by_table.items():
        behind = answers_behind(label, where, answers)
        questions = chosen_questions(behind, samples) if len(behind) else []
        # Without the comparisons over all tasks, which have a label of their own.
        of_table = [each for each in compared if each.task == label and each.where == where]
        tables.append(ScoreTable(f"{label}, {where}", rows_of_table, behind, questions, of_table))
    return tables


def answers_behind(label: str, where: str, answers: DataFrame) -> DataFrame:
    """Return the answers behind the rows with a label.

    The label is the name of the evaluation task, with the training task where that varies.
    """
    here = answers[answers["where"] == where]
    for (evaluated, trained_on), of_task in here.groupby(["evaluated", "task"], sort=False):
        if label in (evaluated, f"{evaluated} (trained on {trained_on})"):
            return of_task
    return here.iloc[:0]


def last_answers(answers: DataFrame) -> DataFrame:
    """Return the answers of each cell's last evaluation."""
    last_steps = answers.groupby("cell")["step"].transform("max")
    return answers[answers["step"] == last_steps]


# The answers side by side


def chosen_questions(answers: DataFrame, samples: Samples) -> list[Record]:
    """Return the problems on which methods differ most in their number of distinct answers.

    They come from the first seed that most methods have done, with the answers before training and after each method.
    """
    seed = answers.drop_duplicates("cell")["seed"].mode().iloc[0]
    group = answers[answers["seed"] == seed]
    task, first_cell = group["evaluated"].iloc[0], group["cell"].iloc[0]
    records = {
        method: by_problem(samples(cell, task, step))
        for (cell, method), step in group.groupby(["cell", "method"], sort=False)["step"].max().items()
    }
    first_records = next(iter(records.values()))
    spreads = {}  # of the problems that every method has
    for problem in last_answers(group[group["cell"] == first_cell])["problem"]:
        of_problem = [of_method[problem] for of_method in records.values() if problem in of_method]
        if len(of_problem) == len(records):
            numbers = list(map(distinct_answers, of_problem))
            spreads[problem] = max(numbers) - min(numbers)
    # Ties: in the order of the problem set.
    chosen = sorted(spreads, key=spreads.__getitem__, reverse=True)[:QUESTIONS]
    has_start = ((group["cell"] == first_cell) & (group["step"] == 0)).any()
    before = by_problem(samples(first_cell, task, 0)) if has_start else {}
    questions = []
    for problem in chosen:
        of_methods = [
            method_answers(method, of_method[problem])
            for method, of_method in [(None, before), *records.items()]
            if problem in of_method
        ]
        prompt, is_wide = first_records[problem]["prompt"], any(each["wide"] for each in of_methods)
        question = {"problem": problem, "prompt": prompt, "seed": seed, "answers": of_methods, "wide": is_wide}
        questions.append(question)
    return questions


def by_problem(records: Sequence[Record]) -> dict[str, Record]:
    return {record["problem"]: record for record in records}


def method_answers(method: str | None, record: Record) -> Record:
    """Return the answers of one method to one problem; of the model before training, for which the method is None."""
    texts, verdicts = record["responses"], record["verdicts"]
    times: Counter[str] = Counter(texts)
    verdict_of = dict(zip(texts, verdicts, strict=True))
    shown = []
    for text, number in times.most_common(ANSWERS):  # of equally frequent ones the first comes first
        start, left_out, end = shortened(text)
        shown.append({"start": start, "left_out": left_out, "end": end, "verdict": verdict_of[text], "times": number})
    right_answers = {answer for answer, verdict in zip(record["answers"], verdicts, strict=True) if verdict == "right"}
    return {
        "method": method,
        "shown": shown,
        "more": len(times) - len(shown),  # distinct responses that are not shown
        "wide": any(len(answer["start"]) > FORMULA for answer in shown),  # text rather than a formula
        "total": len(texts),
        "distinct": distinct_answers(record),
        "right_distinct": len(right_answers),
        "right": verdicts.count("right"),
    }


def shortened(text: str) -> tuple[str, int, str]:
    """Return the beginning of a text, how many characters are left out, and the end; short texts are whole."""
    if len(text) <= LONGEST_ANSWER:
        return text, 0, ""
    half = LONGEST_ANSWER // 2
    return text[:half], len(text) - 2 * half, text[-half:]


def distinct_answers(record: Record) -> int:
    """Return the number of distinct answers to a problem; a response without one counts for none."""
    return len(set(record["answers"]) - {None})


# From MLflow


def content_of_config(config: Config, matrix: Sequence[Cell], command: str | None) -> PageContent:
    """Return the content of a configuration's page; `command` repeats the matrix."""
    with opened_experiment(config.name, config.tracking_uri) as experiment:
        board = experiment.board_of(config, matrix)
        check_begun(experiment, board)
        notes, settings = runs_left_out(board, experiment), dataclasses.asdict(config)
        folders = {cell.id: cell.folder for cell in matrix}
        return content_of_board(experiment, board, notes=notes, command=command, settings=settings, folders=folders)


def content_of_experiment(uri: str, name: str) -> PageContent:
    """Return the content of the page of an experiment: of the newest of its matrices."""
    with opened_experiment(name, uri) as experiment:
        board, *others = experiment.boards()
        notes = runs_left_out(board, experiment)
        if others:
            notes.append(f"The experiment holds {len(others) + 1} matrices, of which this is the newest.")
        return content_of_board(experiment, board, notes=notes)


def content_of_packs(paths: Sequence[Path]) -> PageContent:
    """Return the content of the page of one pack, or of several with the same protocol."""
    with opened_packs(paths) as experiment:
        [board] = experiment.boards()
        source = f"the files {', '.join(path.name for path in paths)}"
        # The files of a pack lie in a temporary folder, which no link may lead to.
        return content_of_board(experiment, board, notes=[], origin=source, folders={})


def content_of_board(
    experiment: Experiment,
    board: Board,
    *,
    notes: Sequence[str],
    command: str | None = None,
    settings: Mapping[str, Any] | None = None,
    origin: str | None = None,
    folders: Mapping[str, Path] | None = None,
) -> PageContent:
    """Return the content of a matrix's page.

    `settings` default to the newest run's. `origin` is the source of the runs; the default is MLflow. `folders` of
    the cells default to the folders of their runs' artifacts, where these are on this machine.
    """
    frames = read_frames(experiment, board.expected, board.baseline)
    rows = leaderboard_rows(frames, board.baseline, board.ks)
    compared = comparisons(frames, board.baseline, board.ks)
    expected = {cell.cell for cell in board.expected}
    runs = {key: run for key, run in experiment.newest.items() if key in expected}
    specs = dict(zip(runs, experiment.specs(list(runs.values())), strict=True))
    curves = dict(zip(runs, experiment.source.curves(list(runs.values()), DRAWN.fullmatch), strict=True))
    records = []
    for cell in board.expected:
        record = {name: vars(cell)[name] for name in ("method", "task", "model", "seed", "cell")}
        record["setting"] = setting_label(cell.setting)
        if run := runs.get(cell.cell):
            spec = specs[cell.cell]
            times = [point.time for points in curves[cell.cell].values() for point in points]
            record |= {
                "state": run.tags["status"],
                "reason": run.tags.get("reason") or None,
                "device": run.tags.get("device", ""),
                "made": origin_of_run(run),
                "times": (min(times), max(times)) if times else None,
                "identity": {} if spec is None else spec.identity,
                "folder": artifact_folder(run.artifacts, experiment.uri) if folders is None else folders.get(cell.cell),
                "address": run_address(experiment.uri, experiment.id, run.id),
            }
        records.append(record)
    cells, steps = page_cells(records), curves_frame(curves)
    if (cells["state"] == "planned").all():
        raise UserError(f"no cell of {board.title!r} has begun yet; `entrobench run` runs them")
    cells["step"] = cells["cell"].map(steps.groupby("cell")["step"].max()).fillna(0).astype("int64")
    answers = done_cells(cells)[OF_CELL].merge(evaluations_of_runs(experiment, runs), on="cell")
    page_notes = list(notes)  # more are added as the samples are read

    def samples(cell: str, task: str, step: int) -> list[Record]:
        run, path = runs[cell], f"samples/evaluate-{task}-{step:06d}.jsonl"
        [text] = experiment.source.texts([run], path)
        try:
            return [] if text is None else files.parse_lines(text, Path(run.name, path))
        except Damaged as damage:
            page_notes.append(f"Answers are left out: {damage}.")
            return []

    newest_settings = next((spec.settings for spec in reversed(specs.values()) if spec is not None), {})
    return PageContent(
        name=board.title,
        source=origin or f"MLflow at {visible_address(experiment.uri)}",
        command=command,
        baseline=board.baseline,
        methods=list(cells["method"].unique()),
        settings=dict(newest_settings if settings is None else settings),
        rows=rows,
        cells=cells,
        curves=steps,
        tables=score_tables(rows, compared, answers, samples),
        notes=page_notes,
    )


def run_address(uri: str, experiment: str, run: str) -> str | None:
    """Return the address of a run's files on an MLflow server; None for other stores and for addresses with secrets."""
    if not is_server(uri) or not may_be_written(uri):
        return None
    return f"{uri.rstrip('/')}/#/experiments/{experiment}/runs/{run}/artifacts"


def origin_of_run(run: Run) -> dict[str, Any]:
    """Return the recorded code and machine of a run."""
    tags = run.tags.items()
    return {
        "version": run.tags.get("code.version"),
        "commit": run.tags.get("code.commit"),
        "processor": run.tags.get("processor"),
        "versions": {key.removeprefix(VERSION_TAG): value for key, value in tags if key.startswith(VERSION_TAG)},
    }


def curves_frame(curves_by_cell: Mapping[str, Curves]) -> DataFrame:
    values = {}  # of a step that is there twice the last value counts
    for cell, curves in curves_by_cell.items():
        for metric, points in curves.items():
            for point in points:
                values[cell, metric, point.step] = point.value
    keys = DataFrame(list(values), columns=CURVES[:-1])
    return keys.assign(value=pandas.Series(list(values.values()), dtype="float64"))


def evaluations_of_runs(experiment: Experiment, runs: Mapping[str, Run]) -> DataFrame:
    """Return the frame of evaluations; files of the same name are read together, which saves a server's time."""
    cells_by_path: dict[str, list[str]] = {}
    for cell, run in runs.items():
        for path in experiment.source.listed(run, "evals"):
            cells_by_path.setdefault(path, []).append(cell)
    evaluations = []
    for path in sorted(cells_by_path):
        cells = cells_by_path[path]
        texts = experiment.source.texts([runs[cell] for cell in cells], path)
        for cell, text in zip(cells, texts, strict=True):
            if text is not None:
                record = files.parsed_json(text, Path(runs[cell].name, path))
                evaluations.append(evaluation_frame(cell, record))
    return pandas.concat(evaluations, ignore_index=True) if evaluations else DataFrame(columns=EVALUATIONS)


def evaluation_frame(cell: str, record: Record) -> DataFrame:
    """Return the rows of one evaluation of a cell, in the order of the problem set."""
    task, step = record["task"], record["step"]
    columns = {
        "cell": cell,
        "evaluated": task,
        "step": step,
        "problem": record["problems"],
        "right": list(map(sum, record["right"])),
        "samples": list(map(len, record["right"])),
        "right_distinct": right_distinct(record, f"the evaluation of {task} at step {step}"),
    }
    return DataFrame(columns, columns=EVALUATIONS)
