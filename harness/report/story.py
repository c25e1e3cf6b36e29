"""All that the page shows of a matrix, read from the cells' folders or from MLflow alone. Imports no torch."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.base import files
from harness.base.errors import UserError
from harness.base.statistics import Estimate, mean_interval, pass_at_k
from harness.config import Config
from harness.matrix import Cell
from harness.record.log import MetricsLog
from harness.record.spec import FILE, CellSpec
from harness.record.state import OUTDATED, Progress, State
from harness.record.store import store
from harness.report import leaderboard
from harness.report.leaderboard import Expected, Row

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Record = dict[str, Any]  # a line of samples/evaluate-*.jsonl
Axes = tuple[str, str, str, int]  # method, task, model, seed

SHOWN = re.compile(
    r"entropy/mean|reward/(mean|groups_without_signal)|responses/(length|truncated|distinct)|ratio/clipped_(low|high)"
    r"|weights/dropped(_positive|_negative)?|dynamics/(positive|negative)_(above|below)/(share|push)|time/\w+_s"
)
INSIDE = "time/judging_s"  # is spent within other phases, and so belongs to no sum
MADE = "made.json"
OLD = "†"  # behind a method's name: by another source than the present one
QUESTIONS = 3  # problems whose answers are shown side by side
FORMULA = 40  # characters of an answer that fits into a narrow column
PAGE = 1000  # runs that MLflow gives at a time, at most
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
    reason: str | None = None
    device: str = ""
    curves: dict[str, dict[int, float]] = field(default_factory=dict)  # value by metric and step
    evaluations: dict[str, dict[int, Evaluation]] = field(default_factory=dict)  # by task and step
    identity: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    times: tuple[float, float] | None = None  # of its first and its last record

    @property
    def axes(self) -> Axes:
        return self.method, self.task, self.model, self.seed

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
    folder = cell.folder
    axes = {"method": cell.method, "task": cell.task, "model": cell.model, "seed": cell.seed}
    if progress.state == "planned":
        return Told(**axes, state="planned", identity=cell.identity)  # type: ignore[arg-type]
    lines = MetricsLog(folder).read()
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for line in lines:
        for name, value in line["metrics"].items():
            if SHOWN.fullmatch(name):
                curves[name][line["step"]] = value
    return Told(
        **axes,  # type: ignore[arg-type]
        state="done" if progress.state == OUTDATED and State.read(folder).state == "done" else progress.state,
        reason=progress.reason,
        device=files.read_json(folder / "state.json")["device"],
        curves=dict(curves),
        evaluations=evaluations(sorted((folder / "evals").glob("*.json"))),
        identity=CellSpec.read(folder).identity,
        made=made_of(folder / MADE),
        times=(lines[0]["time"], lines[-1]["time"]) if lines else None,
    )


def made_of(path: Path) -> dict[str, Any]:
    """Returns what is known of the code and the machine that made a cell; nothing of a cell that did not note it."""
    found = files.read_json(path) if path.exists() else {}
    return {key: found[key] for key in ("version", "commit", "processor", "versions") if key in found}


def evaluations(paths: Sequence[Path]) -> dict[str, dict[int, Evaluation]]:
    found: dict[str, dict[int, Evaluation]] = defaultdict(dict)
    for path in paths:
        record = files.read_json(path)
        found[record["task"]][record["step"]] = Evaluation(record["problems"], np.array(record["right"]))
    return dict(found)


def entropy_kept(cells: Sequence[Told]) -> Estimate | None:
    """Returns the entropy at the last training step as a share of that at the first: the geometric mean of the cells'
    shares, with its 95 % interval. A cell without entropy at an end has no such share."""
    ends = np.array([cell.entropy for cell in cells if cell.entropy]).reshape(-1, 2)
    ends = ends[(np.isfinite(ends) & (ends > 0)).all(axis=1)]
    if not len(ends):
        return None
    found = mean_interval(np.log(ends[:, 1] / ends[:, 0]))
    mean, *limits = (None if each is None else float(np.exp(each)) for each in (found.mean, found.low, found.high))
    assert mean is not None
    return Estimate(mean, *limits)


# From MLflow alone


def of_experiment(uri: str, name: str) -> Story:
    """Returns the story of an MLflow experiment, whose cells may have run anywhere."""
    with store(uri, write=False) as client, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        chosen, older = newest(list(runs_of(client, name, uri)))
        specs = {axes: spec_of(client, run, folder, name) for axes, run in chosen.items()}
        found = {axes: of_run(client, run, specs[axes], folder) for axes, run in chosen.items()}
        latest = max(chosen, key=lambda axes: chosen[axes].info.start_time)
        config = specs[latest].config
        meant = [(m, t, model, s) for s in config.seeds for t in config.tasks for model in config.models
                 for m in config.methods]  # fmt: skip
        cells = [found.get(axes) or Told(*axes, state="planned") for axes in meant]
        notes = [f"{older} other runs of the same method, task, model and seed are left out."] if older else []
        others = [axes for axes in found if axes not in meant]
        if others:
            notes.append(f"{len(others)} runs of cells that the newest run's configuration does not have are left out.")
        expected, ks = expected_of(cells, specs, config)
        if not expected:
            raise UserError(f"no run of {name!r} at {uri} has an evaluation yet")

        def samples(cell: Told, task: str, step: int) -> list[Record]:
            run, path = chosen[cell.axes].info.run_id, f"samples/evaluate-{task}-{step:06d}.jsonl"
            held = {artifact.path for artifact in client.list_artifacts(run, "samples")}
            return files.read_lines(Path(client.download_artifacts(run, path, scratch))) if path in held else []

        return assembled(
            cells,
            leaderboard.rows(uri, name, expected, config.baseline, ks),
            samples,
            name=name,
            source="MLflow alone",
            command=None,
            baseline=config.baseline,
            methods=config.methods,
            settings=specs[latest].settings,
            notes=notes,
        )


def runs_of(client: MlflowClient, name: str, uri: str) -> Iterator[Run]:
    experiment = client.get_experiment_by_name(name)
    if experiment is None or experiment.lifecycle_stage != "active":
        raise UserError(f"the MLflow store at {uri} has no experiment {name!r}")
    token = None
    while True:
        page = client.search_runs(
            [experiment.experiment_id], max_results=PAGE, order_by=["attributes.start_time ASC"], page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def newest(runs: Sequence[Run]) -> tuple[dict[Axes, Run], int]:
    """Returns the run that counts of each method, task, model and seed, the newest that is done or else the newest; and
    how many others there are."""
    chosen: dict[Axes, Run] = {}
    others = 0
    for run in runs:
        tags = run.data.tags
        if not {"cell", "method", "task", "model", "seed", "status"} <= tags.keys():
            continue
        axes = (tags["method"], tags["task"], tags["model"], int(tags["seed"]))
        others += axes in chosen
        if axes not in chosen or tags["status"] == "done" or chosen[axes].data.tags["status"] != "done":
            chosen[axes] = run
    if not chosen:
        raise UserError("the experiment has no run that entrobench made, or all of them were deleted")
    return chosen, others


def spec_of(client: MlflowClient, run: Run, folder: Path, name: str) -> CellSpec:
    own = folder / run.info.run_id
    own.mkdir()
    if FILE not in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}:
        raise UserError(f"the run {run.info.run_name!r} of experiment {name!r} has no artifact {FILE}")
    client.download_artifacts(run.info.run_id, FILE, str(own))
    return CellSpec.read(own)


def of_run(client: MlflowClient, run: Run, spec: CellSpec, folder: Path) -> Told:
    own, run_id, tags = folder / run.info.run_id, run.info.run_id, run.data.tags
    held = {artifact.path for artifact in client.list_artifacts(run_id)}
    if "evals" in held:
        client.download_artifacts(run_id, "evals", str(own))
    histories = {name: client.get_metric_history(run_id, name) for name in run.data.metrics if SHOWN.fullmatch(name)}
    stamps = [point.timestamp / 1000 for points in histories.values() for point in points]
    return Told(
        spec.method,
        spec.task,
        spec.model,
        spec.seed,
        state=tags["status"],
        reason=tags.get("reason") or None,
        device=tags.get("device", ""),
        curves={name: {p.step: p.value for p in sorted(points, key=step_of)} for name, points in histories.items()},
        evaluations=evaluations(sorted((own / "evals").glob("*.json"))),
        identity=spec.identity,
        made={
            "version": tags.get("code.version"),
            "commit": tags.get("code.commit"),
            "processor": tags.get("processor"),
            "versions": {key[8:]: value for key, value in tags.items() if key.startswith("version.")},
        },
        times=(min(stamps), max(stamps)) if stamps else None,
    )


def step_of(point: Any) -> int:
    return int(point.step)


def expected_of(
    cells: Sequence[Told], specs: Mapping[Axes, CellSpec], config: Config
) -> tuple[list[Expected], dict[str, int]]:
    """Returns the cells as the table wants them, and the headline's k of each evaluation task."""
    evaluated: dict[str, dict[str, None]] = defaultdict(dict)  # by training task, in order
    for cell in cells:
        evaluated[cell.task] |= dict.fromkeys(cell.evaluations)
    expected = [
        Expected(
            cell.method,
            cell.task,
            list(evaluated[cell.task]),
            cell.model,
            cell.seed,
            specs[cell.axes].cell if cell.axes in specs else "",
        )
        for cell in cells
        if evaluated[cell.task]
    ]
    return expected, {task: config.eval.of(task).k for each in expected for task in each.eval_tasks}


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
        Training(f"{task}, {model}", [cell for cell in done if (cell.task, cell.model) == (task, model)])
        for task, model in dict.fromkeys((cell.task, cell.model) for cell in done)
    ]
    boards = []
    for label, model in dict.fromkeys((row.task, row.model) for row in rows):
        own = [row for row in rows if (row.task, row.model) == (label, model)]
        theirs, task = cells_behind(label, model, done)
        chosen = questions(theirs, task, samples) if theirs else []
        boards.append(Board(f"{label}, {model}", task, own, theirs, chosen))
    return Story(rows=rows, cells=cells, boards=boards, trainings=trainings, **given)


def cells_behind(label: str, model: str, done: Sequence[Told]) -> tuple[list[Told], str]:
    """Returns the cells behind the rows with a label, and the name of their evaluation task: the label is that name,
    which says what was trained on where that varies."""
    found = [
        (cell, task)
        for cell in done
        for task in cell.evaluations
        if cell.model == model and label in (task, f"{task} (trained on {cell.task})")
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
