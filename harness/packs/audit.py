"""The audit of a pack: every answer is judged again, and scores, names and steps must follow from the records."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice, product
from pathlib import Path
from statistics import fmean
from typing import Any

import baselines
import tasks
from harness.base import files, identities
from harness.base.errors import Damaged, UserError, shown
from harness.base.schema import typed
from harness.cells import checksums, evaluations
from harness.cells.evaluations import answers_path, evaluation_due, evaluation_path
from harness.cells.log import MetricsLog, collapse, last_step
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.config.sections import Eval
from harness.methods.composition import Method
from harness.packs.archive import Pack
from harness.packs.protocol import Protocol, departures, protocol_sections
from harness.rollout import models
from harness.table.board import AXES, Board
from harness.table.verified import COUNTED, JUDGED, REPORTED
from harness.tracking.sync import params_of, params_without_k
from harness.verify.pool import FAILURES, TooManyFailures, check_failures
from tasks import Problem, Task, Verdict, Verifier
from tasks.problems import DATA, OwnProblems
from tasks.scoring import distinct_right, judged, scores, solutions

LISTED = 5  # findings of one cell, at most


class Library:
    """Methods and tasks by name, with the problems; with the plugins that the reader names, not the pack."""

    def __init__(self, plugins: Sequence[str]) -> None:
        self.methods = baselines.table(plugins)
        self.task = cache(lambda spec: present_task(spec, plugins))
        self.problems = cache(lambda spec, split: {each.id: each for each in self.task(spec).problems(split)})

    def identity(self, spec: str, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """Return the identity of a task; refuse the one of a cell if its data set is another one here."""
        own = identities.component_identity(self.task(spec))
        if own.get(DATA) != recorded.get(DATA):
            raise UserError("its data set here has other problems")
        return own


def present_task(spec: str, plugins: Sequence[str]) -> Task:
    """Return a task; refuse to download a data set because a pack names it."""
    task = tasks.build_task(spec, plugins)
    if isinstance(task, OwnProblems) and task.must_download:
        raise UserError("its data set is not on this machine")
    return task


@dataclass
class CellAudit:
    """The findings on one cell; a cell without any has a mark."""

    spec: CellSpec
    folder: Path
    mark: str = REPORTED
    answers: int = 0  # that were judged again
    undecided: int = 0  # of these, answers on which the verifier ran into its limits, then or now
    counted: int = 0  # answers that the pack holds as counts alone
    findings: list[str] = field(default_factory=list)  # contradictions
    notes: list[str] = field(default_factory=list)  # reasons why something was not judged

    @property
    def label(self) -> str:
        return f"{self.spec.key.run_name} ({self.spec.id})"


@dataclass
class PackAudit:
    """The findings on a pack and on each of its cells."""

    cells: list[CellAudit]
    findings: list[str]  # on what the pack says of its cells together


def audit_pack(pack: Pack, verifier: Verifier, plugins: Sequence[str] = ()) -> PackAudit:
    library = Library(plugins)
    audits = [audit_cell(folder, pack, verifier, library) for folder in pack.cells]
    sound = [audit for audit in audits if not audit.findings and State.known(audit.folder).state == "done"]
    find_copies(sound)
    findings: list[str] = []
    try:
        findings += islice(other_matrix(pack.board, pack.protocol, [audit.spec for audit in audits]), LISTED)
    except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
        findings.append(f"it is not the record of a matrix ({type(error).__name__}: {error})")
    for audit in audits:
        if findings or audit.findings:
            audit.mark = REPORTED
    return PackAudit(audits, findings)


def audit_cell(folder: Path, pack: Pack, verifier: Verifier, library: Library) -> CellAudit:
    audit = CellAudit(CellSpec.read(folder), folder)
    spec = audit.spec
    if identities.key(spec.identity) != spec.id or not folder.name.endswith(spec.id):
        audit.findings.append(f"its identity has the hash {identities.key(spec.identity)}, and its record {spec.id}")
    try:
        for sentence in islice(departures(pack.protocol, spec), LISTED):
            audit.findings.append(f"by the protocol of the pack, {sentence}")
        state = State.read(folder)
        if state.state != "done":
            audit.notes.append(f"it is {state.state}, so it has no row")
            return audit
        Made.read(folder)  # which no sum covers
        for damage, _ in checksums.changed_records(folder):
            audit.findings.append(str(damage))
        check_names(audit, library)
        audit.findings += other_records(folder, spec)
        audit_answers(audit, verifier, library)
    except Damaged as damage:
        audit.findings.append(str(damage))
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, ArithmeticError) as error:
        # The records may be a stranger's, and each of their values may be missing or of another type.
        audit.findings.append(f"its records are not those of a cell ({type(error).__name__}: {error})")
    # Files lie in a temporary folder, whose name says nothing to readers.
    audit.findings = [sentence.replace(f"{folder}/", "") for sentence in audit.findings]
    if not audit.findings and not audit.notes:
        audit.mark = COUNTED if audit.counted else JUDGED
    return audit


def audit_answers(audit: CellAudit, verifier: Verifier, library: Library) -> None:
    """Judge all answers of a cell again."""
    spec, folder = audit.spec, audit.folder
    logged = {line["step"]: line["metrics"] for line in MetricsLog(folder).read()}
    specs = evaluation_specs(spec)
    for path, record in evaluations.all_evaluations(folder):
        name = record["task"]
        if name not in specs:
            continue  # which `other_records` names
        written, recorded = specs[name]
        try:
            library.identity(written, recorded)
            task = library.task(written)
            problems = library.problems(written, spec.config.eval.of(name).split)
            trained_on = library.task(spec.key.task).name
        except UserError as error:
            audit.notes.append(f"the task {written} is not available here ({error})")
            continue
        evaluation = Evaluation(record, answers_path(path), task, problems)
        findings = other_problems(evaluation, spec, trained_on)
        if not evaluation.samples.exists():
            audit.counted += sum(map(len, record["right"]))
        elif not findings:
            findings = judged_again(audit, evaluation, verifier, logged[record["step"]])
        where = f"{name} at step {record['step']}"
        audit.findings += [f"{where}: {finding}" for finding in findings[:LISTED]]
        if len(findings) > LISTED:
            audit.findings.append(f"{where}: and {len(findings) - LISTED} more")


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of a packed cell, with its task and problems as they are here."""

    record: dict[str, Any]
    samples: Path  # its answers
    task: Task
    problems: dict[str, Problem]


def other_problems(evaluation: Evaluation, spec: CellSpec, trained_on: str) -> list[str]:
    """Return how the problems of an evaluation and its counts contradict the task, as sentences."""
    record, task, problems = evaluation.record, evaluation.task, evaluation.problems
    settings = spec.config.eval.of(record["task"])
    expected = list(problems)[: settings.problems]
    if record["problems"] != expected:
        return [f"its problems are not the first {len(expected)} of {settings.split}"]
    if record["flags"] != task.flags(trained_on):
        return ["its flags are not those of the task"]
    counted = [solutions(task, problems[name]) for name in expected]
    stored = record["solutions"] or [None] * len(expected)
    findings = []
    for name, own, theirs in zip(expected, counted, stored, strict=True):
        if own != theirs:
            findings.append(f"{name} has {own} right answers, and another number is stored")
    for name, right, distinct in zip(expected, record["right"], record["right_distinct"], strict=True):
        if not set(right) <= {0, 1} or not min(sum(right), 1) <= distinct <= sum(right):
            findings.append(f"the numbers of right and of distinct right answers to {name} contradict each other")
    return findings


def judged_again(
    audit: CellAudit, evaluation: Evaluation, verifier: Verifier, logged: Mapping[str, float]
) -> list[str]:
    """Judge the answers of an evaluation, and return how verdicts, counts, scores and prompts differ, as sentences."""
    record, task = evaluation.record, evaluation.task
    findings: list[str] = []
    all_kept: list[str] = []
    all_new: list[str] = []
    scores_J: list[dict[str, Any]] = []
    unconfirmed = 0
    for number, sample in enumerate(files.stream_lines(evaluation.samples)):
        if record["problems"][number : number + 1] != [sample["problem"]]:
            return ["its answers are not those of its problems"]
        problem = evaluation.problems[sample["problem"]]
        # A model's own instruction may replace that of a task, and is then part of the stored prompt.
        if sample["prompt"] != problem.prompt and not hasattr(task, "instruction"):
            findings.append(f"the prompt of {problem.id} is another one")
        if sample.get("shots", []) != [list(shot) for shot in problem.shots]:
            findings.append(f"the worked examples before {problem.id} are others")
        kept, results = list(map(Verdict, sample["verdicts"])), judged(task, verifier, problem, sample["responses"])
        audit.answers += len(results)
        new, answers = [result.verdict for result in results], [result.text for result in results]
        for place, (before, now) in enumerate(zip(kept, new, strict=True), 1):
            if before != now and not {before, now}.isdisjoint(FAILURES):
                audit.undecided += 1
                unconfirmed += before == Verdict.RIGHT
            elif before != now:
                findings.append(f"answer {place} to {problem.id} is {now}, stored as {before}")
        if [int(verdict == Verdict.RIGHT) for verdict in kept] != record["right"][number]:
            findings.append(f"the counts of {problem.id} do not follow from its verdicts")
        if distinct_right(kept, answers) != record["right_distinct"][number]:
            findings.append(f"the distinct right answers to {problem.id} are not those stored")
        goes_on = [result.goes_on for result in results]
        scores_J.append(scores(sample["responses"], kept, answers, goes_on, solutions(task, problem)))
        all_kept += kept
        all_new += new
    if len(scores_J) != len(record["problems"]):
        return ["its answers are not those of its problems"]
    for verdicts in (all_kept, all_new):
        try:
            check_failures(verdicts, audit.spec.config.verify.max_failures)
        except TooManyFailures as failure:
            findings.append(str(failure))
    if unconfirmed:
        where = f"{record['task']} at step {record['step']}"
        audit.notes.append(f"{where}: {unconfirmed} answers stored as right could not be decided here")
    elif not findings:
        # Without `avg`, which was compared with the counts.
        means = {key: fmean(each[key] for each in scores_J) for key in scores_J[0] if key != "avg"}
        findings += other_scores(evaluation.samples, record, means, logged)
    return findings


# The names of a cell


def check_names(audit: CellAudit, library: Library) -> None:
    """Find contradictions between the names of a cell and its identity; note the names that cannot be compared."""
    spec, identity, key = audit.spec, audit.spec.identity, audit.spec.key
    if identity["seed"] != key.seed:
        audit.findings.append(f"its seed is {key.seed}, and that of its identity {identity['seed']}")
    try:
        method = Method.of(key.method, library.methods, spec.config.method_options)
        if not contains(method.identity(spec.config.train.lr), identity["method"]):
            audit.findings.append(f"its identity is not that of the method {shown(key.method)}")
    except UserError as error:
        audit.notes.append(f"the method {key.method} is not available here ({error})")
    written = [(key.task, identity["task"])]
    written += zip(spec.config.eval.tasks or [key.task], identity["evaluation_tasks"], strict=True)
    for name, of_identity in written:
        try:
            own = library.identity(name, of_identity)
        except UserError as error:
            audit.notes.append(f"the task {name} is not available here ({error})")
            continue
        if not contains([own], [of_identity]):
            audit.findings.append(f"its identity is not that of the task {shown(name)}")
    # The names of downloaded models and of folders are the author's; a recipe defines the model.
    if "recipe" in identity["model"]:
        try:
            if models.resolve(key.model).identity() != identity["model"]:
                audit.findings.append(f"its identity is not that of the model {shown(key.model)}")
        except UserError:
            audit.findings.append(f"its identity has a recipe, and {shown(key.model)} is no model with one")


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


def evaluation_specs(spec: CellSpec) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the specs and identities of the evaluation tasks, by the names of their evaluations."""
    named = {}
    written = spec.config.eval.tasks or [spec.key.task]
    for each, identity in zip(written, spec.identity["evaluation_tasks"], strict=True):
        # An evaluation is named in the identity if it has options, and else like its task.
        named[identity.get("name", each.partition("(")[0].strip())] = (each, identity)
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
        samples = spec.config.eval.of(record["task"]).samples
        if {len(row) for row in record["right"]} != {samples}:
            yield f"{path.name} does not hold {samples} samples of each problem"
            continue
        yield from other_scores(path, record, evaluations.scores_of_counts(record), lines[record["step"]]["metrics"])


def other_scores(
    path: Path, record: Mapping[str, Any], present: Mapping[str, float], logged: Mapping[str, float]
) -> Iterator[str]:
    """Yield how the scores of an evaluation contradict the scores that the cell logged with it, as sentences."""
    if missing := [key for key in present if f"eval/{record['task']}/{key}" not in logged]:
        yield f"{path.name} has no {missing[0]} among the metrics of its step"
    yield from evaluations.score_differences(record, present, logged)


# Cells among each other


def find_copies(audits: Sequence[CellAudit]) -> None:
    """Add a finding to each cell whose attempt or answers are those of another cell."""
    known: dict[tuple[str, ...], CellSpec] = {}
    attempts: dict[str, CellSpec] = {}
    for audit in audits:
        spec, made = audit.spec, Made.read(audit.folder)
        if made is not None:
            first = attempts.setdefault(made.attempt, spec)
            if first is not spec:
                audit.findings.append(f"its attempt is that of {first.key.run_name}")
        digests = []
        for path, record in evaluations.all_evaluations(audit.folder):
            # Greedy answers of one model are equal with every seed.
            if spec.config.eval.of(record["task"]).temperature > 0:
                digests.append(evaluations.answers_sha256(path, record))
        if len(digests) > 1 and "" not in digests:
            first = known.setdefault(tuple(digests), spec)
            if first.key.seed != spec.key.seed:
                audit.findings.append(f"its answers are those of {first.key.run_name}, byte for byte")


# The matrix


def other_matrix(board: Board, protocol: Protocol, specs: Iterable[CellSpec]) -> Iterator[str]:
    """Yield how the expected cells of a pack contradict its protocol and its cells, as sentences."""
    definition, config = protocol.definition, board.config
    if sorted(config.get("seeds", [])) != definition["seeds"] or config.get("axes", {}) != definition["axes"]:
        yield "its seeds or its further axes are not those of the protocol"
    if protocol_sections(config) != {name: definition[name] for name in protocol_sections(config)}:
        yield "its settings are not those of the protocol"
    axes = [config.get(f"{axis}s", []) for axis in AXES] + [*config.get("axes", {}).values()]
    texts = [dict.fromkeys(map(str, values)) for values in axes]
    present = {cell.place for cell in board.expected}
    beyond = {place for place in present if len(place) != len(texts) or not all(map(operator.contains, texts, place))}
    # One by one: the axes of a stranger's pack may have more places than fit into memory.
    lacking = (place for place in product(*texts) if place not in present)
    for place in chain(sorted(beyond), lacking):
        yield f"its expected cells are not those of its axes ({' '.join(place)})"
    evaluation = typed(Eval(), definition["eval"], "eval.")
    for task, k in board.ks.items():
        if evaluation.of(task).k != k:
            yield f"its K of {task} is {k}, and {evaluation.of(task).k} in the protocol"
    expected = {cell.cell: cell for cell in board.expected}
    if board.baseline != config.get("baseline"):
        yield f"its baseline is {shown(board.baseline)}, and {shown(config.get('baseline'))} in its configuration"
    for spec in specs:
        cell = expected.get(spec.id)
        if cell is None:
            yield f"it does not name {spec.key.run_name} ({spec.id})"
            continue
        if list(cell.eval_tasks) != list(evaluation_specs(spec)):
            yield f"its evaluations of {spec.key.run_name} are not those of the cell"
        named = (cell.place[: len(AXES)], params_without_k(cell.params), cell.made_of)
        recorded = (tuple(spec.key.tags().values()), params_without_k(params_of(spec)), spec.made_of)
        if named != recorded:
            yield f"its values of {spec.key.run_name} ({spec.id}) are not those of the cell"
