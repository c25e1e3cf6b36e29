"""The audit of a pack: every stored answer is judged again, and the scores must follow from the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tasks
from harness.base import files, identities
from harness.base.errors import Damaged, UserError
from harness.cells import checksums, evaluation_files
from harness.cells.log import MetricsLog, last_step
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.packs.archive import Pack
from harness.packs.protocol import departures
from harness.table.verified import JUDGED, REPORTED
from harness.verify.pool import FAILURES
from tasks import Task, Verdict, Verifier
from tasks.scoring import distinct_right, judged, solutions

LISTED = 5  # findings of one cell, at most


@dataclass
class CellAudit:
    """The findings on one cell; a cell without any has a mark."""

    spec: CellSpec
    folder: Path
    mark: str = REPORTED
    answers: int = 0  # that were judged again
    undecided: int = 0  # of these, answers on which the verifier ran into its limits, then or now
    findings: list[str] = field(default_factory=list)  # contradictions
    notes: list[str] = field(default_factory=list)  # reasons why something was not judged

    @property
    def label(self) -> str:
        return f"{self.spec.key.run_name} ({self.spec.id})"


class TaskLibrary:
    """The tasks of a pack with their problems by name; with the plugins that the reader names, not the pack."""

    def __init__(self, plugins: Sequence[str]) -> None:
        self.table_plugins = list(plugins)
        self.tasks: dict[str, Task] = {}
        self.known: dict[tuple[str, str], dict[str, tasks.Problem]] = {}

    def task(self, spec: str) -> Task:
        if spec not in self.tasks:
            self.tasks[spec] = tasks.build_task(spec, self.table_plugins)
        return self.tasks[spec]

    def problems(self, spec: str, split: str) -> dict[str, tasks.Problem]:
        """Return the problems of a split in their order, by their names."""
        if (spec, split) not in self.known:
            self.known[spec, split] = {problem.id: problem for problem in self.task(spec).problems(split)}
        return self.known[spec, split]


def audit_pack(pack: Pack, verifier: Verifier, plugins: Sequence[str] = ()) -> Iterator[CellAudit]:
    """Yield the audit of each cell of a pack."""
    library = TaskLibrary(plugins)
    for folder in pack.cells:
        yield audit_cell(folder, pack, verifier, library)


def audit_cell(folder: Path, pack: Pack, verifier: Verifier, library: TaskLibrary) -> CellAudit:
    """Return the audit of one cell."""
    audit = CellAudit(CellSpec.read(folder), folder)
    spec = audit.spec
    if identities.key(spec.identity) != spec.id or not folder.name.endswith(spec.id):
        audit.findings.append(f"its identity has the hash {identities.key(spec.identity)}, and its record {spec.id}")
    try:
        for sentence in departures(pack.protocol, spec):
            audit.findings.append(f"by the protocol of the pack, {sentence}")
        state = State.read(folder)
        if state.state != "done":
            audit.notes.append(f"it is {state.state}, so it has no row")
            return audit
        Made.read(folder)  # which no sum covers
        for damage, _ in checksums.changed_records(folder):
            audit.findings.append(str(damage))
        check_records(audit)
        audit_answers(audit, verifier, library)
    except Damaged as damage:
        audit.findings.append(str(damage))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        # The records may be a stranger's, and each of their values may be missing or of another type.
        audit.findings.append(f"its records are not those of a cell ({type(error).__name__}: {error})")
    # Files lie in a temporary folder, whose name says nothing to readers.
    audit.findings = [sentence.replace(f"{folder}/", "") for sentence in audit.findings]
    if not audit.findings and not audit.notes:
        audit.mark = JUDGED
    return audit


def check_records(audit: CellAudit) -> None:
    """Check that a cell has all of its steps, and its last evaluation of each task."""
    spec, folder = audit.spec, audit.folder
    lines = MetricsLog(folder).read()
    last = last_step(lines, spec.config)
    if [line["step"] for line in lines] != list(range(last + 1)):
        audit.findings.append(f"metrics.jsonl does not hold the steps 0 to {last}")
    for name in evaluation_specs(spec):
        record = evaluation_files.read_evaluation(evaluation_files.evaluation_path(folder, name, last))
        if {len(row) for row in record["right"]} != {spec.config.eval.of(name).samples}:
            audit.findings.append(f"its last evaluation of {name} lacks samples")


def evaluation_specs(spec: CellSpec) -> dict[str, str]:
    """Return the specs of the evaluation tasks, by the names of their evaluations."""
    named = {}
    written = spec.config.eval.tasks or [spec.key.task]
    for each, identity in zip(written, spec.identity["evaluation_tasks"], strict=True):
        # An evaluation is named in the identity if it has options, and else like its task.
        named[identity.get("name", each.partition("(")[0].strip())] = each
    return named


def audit_answers(audit: CellAudit, verifier: Verifier, library: TaskLibrary) -> None:
    """Judge all answers of a cell again."""
    spec, folder = audit.spec, audit.folder
    logged = {line["step"]: line["metrics"] for line in MetricsLog(folder).read()}
    specs = evaluation_specs(spec)
    for path, record in evaluation_files.all_evaluations(folder):
        evaluation_files.check_scores(path, record, logged.get(record["step"], {}))
        name, step = record["task"], record["step"]
        samples_path = folder / "samples" / f"evaluate-{name}-{step:06d}.jsonl"
        if name not in specs:
            audit.findings.append(f"{path.name} is of a task that the cell is not evaluated on")
            continue
        if not samples_path.exists():
            audit.notes.append(f"{path.name} has no answers, only their counts")
            continue
        try:
            task = library.task(specs[name])
            problems = library.problems(specs[name], spec.config.eval.of(name).split)
        except UserError as error:
            note = f"the task {specs[name]} is not available here ({error})"
            if note not in audit.notes:
                audit.notes.append(note)
            continue
        audit_evaluation(audit, record, files.read_lines(samples_path), task, problems, verifier)


def audit_evaluation(
    audit: CellAudit,
    record: dict[str, Any],
    samples: Sequence[dict[str, Any]],
    task: Task,
    problems: dict[str, tasks.Problem],
    verifier: Verifier,
) -> None:
    """Judge the answers of one evaluation, and compare the verdicts, the counts and the problems."""
    where = f"{record['task']} at step {record['step']}"
    settings = audit.spec.config.eval.of(record["task"])
    expected = list(problems)[: settings.problems]
    names = [sample["problem"] for sample in samples]
    if names != record["problems"] or names != expected:
        audit.findings.append(f"{where}: its problems are not the first {len(expected)} of {settings.split}")
        return
    findings = []
    for number, sample in enumerate(samples):
        problem, verdicts = problems[sample["problem"]], sample["verdicts"]
        # A model's own instruction may replace that of a task, and is then part of the stored prompt.
        if sample["prompt"] != problem.prompt and not hasattr(task, "instruction"):
            findings.append(f"{where}: the prompt of {problem.id} is another one")
        results = judged(task, verifier, problem, sample["responses"])
        audit.answers += len(results)
        answers, right = [], []
        for place, (kept, result) in enumerate(zip(verdicts, results, strict=True)):
            answers.append(result.text)
            right.append(int(kept == Verdict.RIGHT))
            if kept == result.verdict:
                continue
            if Verdict(kept) in FAILURES or result.verdict in FAILURES:
                audit.undecided += 1
            else:
                findings.append(f"{where}: answer {place + 1} to {problem.id} is {result.verdict}, stored as {kept}")
        if right != record["right"][number]:
            findings.append(f"{where}: the counts of {problem.id} do not follow from its verdicts")
        if distinct_right(verdicts, answers) != record["right_distinct"][number]:
            findings.append(f"{where}: the distinct right answers to {problem.id} are not those stored")
        counted = solutions(task, problem)
        if counted is not None:
            stored = (record["solutions"] or [])[number : number + 1]  # a slice: the record may hold too few numbers
            if stored != [counted]:
                findings.append(f"{where}: {problem.id} has {counted} right answers, and another number is stored")
    audit.findings += findings[:LISTED]
    if len(findings) > LISTED:
        audit.findings.append(f"{where}: and {len(findings) - LISTED} more")
