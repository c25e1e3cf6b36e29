"""All that the page shows of a matrix, read from the cells' folders or from MLflow alone. Imports no torch."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.base import files
from harness.base.errors import Damaged, UserError
from harness.base.statistics import pass_at_k
from harness.config import Config, told
from harness.matrix import Cell
from harness.record.log import MetricsLog
from harness.record.reader import reader
from harness.record.spec import CellSpec
from harness.record.state import OUTDATED, Progress, State
from harness.report import leaderboard
from harness.report.board import Expected
from harness.report.leaderboard import Row
from harness.report.read import Experiment
from harness.report.select import left_out

Record = dict[str, Any]  # an evaluation, or a line of samples/evaluate-*.jsonl
Axes = tuple[str, str, str, str, int]  # method, task, model, setting, seed

SHOWN = re.compile(
    r"entropy/mean|reward/(mean|groups_without_signal)|responses/(length|truncated|distinct)|ratio/clipped_(low|high)"
    r"|weights/dropped(_positive|_negative)?|dynamics/(positive|negative)_(above|below)/(share|push)|time/\w+_s"
)
INSIDE = "time/judging_s"  # is spent within other phases, and so belongs to no sum
MADE = "made.json"
OLD = "†"  # behind a method's name: by another source than the present one
QUESTIONS = 3  # problems whose answers are shown side by side
FORMULA = 40  # characters of an answer that fits into a narrow column
ANSWERS = 16  # to a problem that are shown, of each method
LONGEST_ANSWER = 300  # characters; of a longer one the middle is left out


@dataclass(frozen=True)
class Evaluation:
    problems: list[str]
    right_JN: np.ndarray

    @property
    def rates(self) -> dict[str, float]:
        """Returns the share of right answers, by problem."""
        return dict(zip(self.problems, self.right_JN.mean(axis=1).tolist(), strict=True))

    def score(self, k: int | None) -> float:
        """Returns the mean Avg@K (k is None) or Pass@k of the problems."""
        if k is None:
            return float(self.right_JN.mean())
        return float(pass_at_k(self.right_JN.shape[1], self.right_JN.sum(axis=1), k).mean())


@dataclass(frozen=True)
class Told:
    """One cell of the matrix, and what it has recorded so far."""

    method: str
    task: str  # that is trained on
    model: str
    seed: int
    state: str
    setting: str = ""  # the values at the further axes of the matrix
    reason: str | None = None
    device: str = ""
    curves: dict[str, dict[int, float]] = field(default_factory=dict)  # value by metric and step
    evaluations: dict[str, dict[int, Evaluation]] = field(default_factory=dict)  # by task and step
    identity: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    times: tuple[float, float] | None = None  # of its first and its last record

    @property
    def axes(self) -> Axes:
        return self.method, self.task, self.model, self.setting, self.seed

    @property
    def where(self) -> str:
        return ", ".join(filter(None, (self.model, self.setting)))

    @property
    def step(self) -> int:
        return max((step for curve in self.curves.values() for step in curve), default=0)

    @property
    def seconds(self) -> float:
        """Returns the seconds of work of the steps that count, whatever was done twice or waited for."""
        phases = (curve for name, curve in self.curves.items() if name.startswith("time/") and name != INSIDE)
        return sum(sum(curve.values()) for curve in phases)

    def last(self, task: str) -> Evaluation:
        return self.evaluations[task][max(self.evaluations[task])]

    def before(self, task: str) -> Evaluation | None:
        """Returns the evaluation of the model that nothing has trained yet."""
        return self.evaluations[task].get(0)

    @property
    def entropy(self) -> tuple[float, float] | None:
        """Returns the entropy at the first and at the last training step."""
        curve = self.curves.get("entropy/mean")
        return (curve[min(curve)], curve[max(curve)]) if curve else None


@dataclass(frozen=True)
class Answer:
    start: str
    left_out: int  # characters between the two
    end: str
    verdict: str
    copy: bool  # the same text stands above it


@dataclass(frozen=True)
class Answers:
    """To one problem, of one method; or of the model before training, for which the method is None."""

    method: str | None
    shown: list[Answer]
    total: int
    distinct: int
    right: int


@dataclass(frozen=True)
class Question:
    problem: str
    prompt: str
    seed: int
    answers: list[Answers]

    @property
    def wide(self) -> bool:
        """Returns whether its answers are text rather than formulas."""
        return any(len(answer.start) > FORMULA for each in self.answers for answer in each.shown)


@dataclass(frozen=True)
class Board:
    """One evaluation task and one model, after training on one task: the rows that may be compared."""

    title: str
    task: str  # of the evaluation
    rows: list[Row]
    cells: list[Told]  # that are done
    questions: list[Question]

    @property
    def k(self) -> int:
        return self.rows[0].k


@dataclass(frozen=True)
class Training:
    """One training task and one model, whose curves may share a figure."""

    title: str
    cells: list[Told]  # that are done


@dataclass(frozen=True)
class Story:
    name: str
    source: str  # where it was read
    command: str | None  # that repeats it; None where only the configuration is known
    baseline: str
    methods: list[str]
    settings: dict[str, Any]  # of the matrix
    rows: list[Row]
    cells: list[Told]
    boards: list[Board]
    trainings: list[Training]
    notes: list[str] = field(default_factory=list)  # on what was left out


def of_folders(config: Config, matrix: Sequence[Cell], rows: list[Row], command: str | None) -> Story:
    """Returns the story of a matrix whose cells have folders here. A method has a mark wherever it is named if another
    source made some of what counts of it."""
    found = [(cell, cell.progress()) for cell in matrix]
    old = [(cell, now) for cell, now in found if now.state == OUTDATED and State.read(cell.folder).state == "done"]
    names = {cell.method: f"{cell.method} {OLD}" for cell, _ in old}

    def named(method: str) -> str:
        return names.get(method, method)

    cells = [dataclasses.replace(told := of_folder(*each), method=named(told.method)) for each in found]
    rows = [dataclasses.replace(row, method=named(row.method), baseline=named(row.baseline)) for row in rows]
    places = {cell.axes: place.folder for cell, place in zip(cells, matrix, strict=True)}

    def samples(cell: Told, task: str, step: int) -> list[Record]:
        path = places[cell.axes] / "samples" / f"evaluate-{task}-{step:06d}.jsonl"
        return files.read_lines(path) if path.exists() else []

    return assembled(
        cells,
        rows,
        samples,
        name=config.name,
        source=f"the cells' folders in {config.folder}, and the MLflow store for the table",
        command=command,
        baseline=named(config.baseline),
        methods=[named(method) for method in config.methods],
        settings=dataclasses.asdict(config),
        notes=[f"{OLD} {cell.label}: {now.reason}; `entrobench run` runs it anew." for cell, now in old],
    )


def of_folder(cell: Cell, progress: Progress) -> Told:
    """Returns what a cell has recorded; one that another source has done is done, too, as in the table."""
    own = {axis: getattr(cell, axis) for axis in ("method", "task", "model", "seed")}
    own["setting"] = told(cell.config.setting)
    try:
        return read_folder(cell, progress, own)
    except Damaged as damage:
        return Told(**own, state="failed", reason=str(damage), identity=cell.identity)


def read_folder(cell: Cell, progress: Progress, own: dict[str, Any]) -> Told:
    folder = cell.folder
    if progress.state == "planned":
        return Told(**own, state="planned", identity=cell.identity)
    lines = MetricsLog(folder).read()
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for line in lines:
        for name, value in line["metrics"].items():
            if SHOWN.fullmatch(name):
                curves[name][line["step"]] = value
    return Told(
        **own,
        state="done" if progress.state == OUTDATED and State.read(folder).state == "done" else progress.state,
        reason=progress.reason,
        device=State.read(folder).device,
        curves=dict(curves),
        evaluations=evaluations(map(files.read_json, sorted((folder / "evals").glob("*.json")))),
        identity=CellSpec.read(folder).identity,
        made=made_of(folder / MADE),
        times=(lines[0]["time"], lines[-1]["time"]) if lines else None,
    )


def made_of(path: Path) -> dict[str, Any]:
    """Returns what is known of the code and the machine that made a cell; nothing of a cell that did not note it."""
    found = files.read_json(path) if path.exists() else {}
    return {key: found[key] for key in ("version", "commit", "processor", "versions") if key in found}


def evaluations(records: Iterable[Record]) -> dict[str, dict[int, Evaluation]]:
    found: dict[str, dict[int, Evaluation]] = defaultdict(dict)
    for record in records:
        found[record["task"]][record["step"]] = Evaluation(record["problems"], np.array(record["right"]))
    return dict(found)


# From MLflow alone


def of_experiment(uri: str, name: str) -> Story:
    """Returns the story of an MLflow experiment, whose cells may have run anywhere: of the newest of its matrices."""
    with reader(uri) as source:
        experiment = Experiment(source, name, uri)
        board, *others = experiment.boards()
        if not any(each.eval_tasks for each in board.expected):
            raise UserError(f"no run of {name!r} at {uri} has an evaluation yet")
        expected = {each.cell: each for each in board.expected}
        runs = {cell: run for cell, run in experiment.newest.items() if cell in expected}
        specs = dict(zip(runs, experiment.specs(list(runs.values())), strict=True))
        found = dict(zip(runs, of_runs(experiment, [expected[cell] for cell in runs], specs), strict=True))
        cells = [
            found.get(each.cell) or Told(each.method, each.task, each.model, each.seed, "planned", told(each.setting))
            for each in board.expected
        ]
        places = {each.axes: runs[cell] for cell, each in found.items()}
        results = experiment.results([each.cell for each in board.expected])
        entries = leaderboard.entries_of(results, board.expected, board.baseline)
        notes = left_out(board, experiment)
        if others:
            notes.append(f"The experiment holds {len(others) + 1} matrices, of which this is the newest.")

        def samples(cell: Told, task: str, step: int) -> list[Record]:
            [text] = source.texts([places[cell.axes]], f"samples/evaluate-{task}-{step:06d}.jsonl")
            return [] if text is None else files.parse_lines(text)

        return assembled(
            cells,
            leaderboard.rows_of(entries, board.baseline, board.ks),
            samples,
            name=name,
            source="MLflow alone",
            command=None,
            baseline=board.baseline,
            methods=list(dict.fromkeys(each.method for each in board.expected)),
            settings=next((spec.settings for spec in reversed(specs.values()) if spec is not None), {}),
            notes=notes,
        )


def of_runs(experiment: Experiment, expected: Sequence[Expected], specs: Mapping[str, CellSpec | None]) -> list[Told]:
    """Returns the cells that have a run, with all that the page shows of them."""
    source, runs = experiment.source, [experiment.newest[each.cell] for each in expected]
    paths = [source.listed(run, "evals") for run in runs]
    records: list[list[Record]] = [[] for _ in runs]
    for path in sorted({path for listed in paths for path in listed}):
        having = [number for number, listed in enumerate(paths) if path in listed]
        for number, text in zip(having, source.texts([runs[number] for number in having], path), strict=True):
            records[number] += [] if text is None else [json.loads(text)]
    found = []
    every = source.curves(runs, SHOWN.fullmatch)
    for each, run, evaluated, curves in zip(expected, runs, records, every, strict=True):
        spec, tags = specs[each.cell], run.tags
        stamps = [point.time for points in curves.values() for point in points]
        found.append(
            Told(
                each.method,
                each.task,
                each.model,
                each.seed,
                tags["status"],
                told(each.setting),
                reason=tags.get("reason") or None,
                device=tags.get("device", ""),
                curves={name: {point.step: point.value for point in points} for name, points in curves.items()},
                evaluations=evaluations(evaluated),
                identity={} if spec is None else spec.identity,
                made={
                    "version": tags.get("code.version"),
                    "commit": tags.get("code.commit"),
                    "processor": tags.get("processor"),
                    "versions": {key[8:]: value for key, value in tags.items() if key.startswith("version.")},
                },
                times=(min(stamps), max(stamps)) if stamps else None,
            )
        )
    return found


# Of both


def assembled(
    cells: list[Told],
    rows: list[Row],
    samples: Callable[[Told, str, int], list[Record]],
    **given: Any,
) -> Story:
    done = [cell for cell in cells if cell.state == "done"]
    if all(cell.state == "planned" for cell in cells):
        raise UserError(f"no cell of {given['name']!r} has begun yet; `entrobench run` runs them")
    trainings = [
        Training(f"{task}, {where}", [cell for cell in done if (cell.task, cell.where) == (task, where)])
        for task, where in dict.fromkeys((cell.task, cell.where) for cell in done)
    ]
    boards = []
    for label, where in dict.fromkeys((row.task, row.where) for row in rows):
        own = [row for row in rows if (row.task, row.where) == (label, where)]
        theirs, task = cells_behind(label, where, done)
        chosen = questions(theirs, task, samples) if theirs else []
        boards.append(Board(f"{label}, {where}", task, own, theirs, chosen))
    return Story(rows=rows, cells=cells, boards=boards, trainings=trainings, **given)


def cells_behind(label: str, where: str, done: Sequence[Told]) -> tuple[list[Told], str]:
    """Returns the cells behind the rows with a label, and the name of their evaluation task: the label is that name,
    which says what was trained on where that varies."""
    found = [
        (cell, task)
        for cell in done
        for task in cell.evaluations
        if cell.where == where and label in (task, f"{task} (trained on {cell.task})")
    ]
    return [cell for cell, _ in found], found[0][1] if found else label


def questions(cells: Sequence[Told], task: str, samples: Callable[[Told, str, int], list[Record]]) -> list[Question]:
    """Returns the problems with the largest difference between methods in how many different answers they give, of the
    first seed that most methods have done, with what the model answered before training and what each method does."""
    seeds = [cell.seed for cell in cells]
    seed = max(dict.fromkeys(sorted(seeds)), key=seeds.count)
    group = [cell for cell in cells if cell.seed == seed]
    asked: dict[str | None, dict[str, Record]] = {}
    for cell in group:
        asked[cell.method] = by_problem(samples(cell, task, max(cell.evaluations[task])))
    shared = [p for p in group[0].last(task).problems if all(p in found for found in asked.values())]

    def difference(problem: str) -> int:
        numbers = [len(set(found[problem]["responses"])) for found in asked.values()]
        return max(numbers) - min(numbers)

    chosen = sorted(shared, key=difference, reverse=True)[:QUESTIONS]  # ties: as they stand in the problem set
    base = by_problem(samples(group[0], task, 0)) if group[0].before(task) is not None else {}
    columns = [(None, base), *asked.items()]
    return [
        Question(
            problem,
            asked[group[0].method][problem]["prompt"],
            seed,
            [answers(method, found[problem]) for method, found in columns if problem in found],
        )
        for problem in chosen
    ]


def parts(text: str) -> tuple[str, int, str]:
    """Returns a text without its middle where it is long: how many characters that is, between what is kept."""
    if len(text) <= LONGEST_ANSWER:
        return text, 0, ""
    half = LONGEST_ANSWER // 2
    return text[:half], len(text) - 2 * half, text[-half:]


def by_problem(records: Sequence[Record]) -> dict[str, Record]:
    return {record["problem"]: record for record in records}


def answers(method: str | None, record: Record) -> Answers:
    texts, verdicts = record["responses"], record["verdicts"]
    shown = [
        Answer(*parts(text), verdict, text in texts[:place])
        for place, (text, verdict) in enumerate(zip(texts[:ANSWERS], verdicts, strict=False))
    ]
    return Answers(method, shown, len(texts), len(set(texts)), sum(verdict == "right" for verdict in verdicts))
