"""The audit of a pack: every answer is judged again, and scores, names and steps must follow from the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.base import files, identities
from harness.base.errors import Damaged, UserError
from harness.cells import checksums, evaluations
from harness.cells.evaluations import answers_path
from harness.cells.log import MetricsLog
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.packs import claims
from harness.packs.archive import Pack
from harness.packs.claims import Library, evaluation_specs
from harness.packs.protocol import departures
from harness.table.verified import COUNTED, JUDGED, REPORTED
from harness.verify.pool import FAILURES, TooManyFailures, check_failures
from tasks import Problem, Task, Verdict, Verifier
from tasks.scoring import distinct_right, judged, scores, solutions

LISTED = 5  # findings of one cell, at most


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
    """Return the audit of a pack."""
    library = Library(plugins)
    audits = [audit_cell(folder, pack, verifier, library) for folder in pack.cells]
    sound = [audit for audit in audits if not audit.findings and State.known(audit.folder).state == "done"]
    by_id = {audit.spec.id: audit for audit in sound}
    for cell, sentence in claims.copies([(audit.spec, audit.folder) for audit in sound]):
        by_id[cell].findings.append(sentence)
    findings: list[str] = []
    try:
        findings += claims.other_matrix(pack.board, pack.protocol, [audit.spec for audit in audits])
    except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
        findings.append(f"it is not the record of a matrix ({type(error).__name__}: {error})")
    for audit in audits:
        if findings or audit.findings:
            audit.mark = REPORTED
    return PackAudit(audits, findings[:LISTED])


def audit_cell(folder: Path, pack: Pack, verifier: Verifier, library: Library) -> CellAudit:
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
        wrong, unknown = claims.other_names(spec, library)
        audit.findings += wrong
        audit.notes += unknown
        audit.findings += claims.other_records(folder, spec)
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
        try:
            task = library.task(specs[name])
            problems = library.problems(specs[name], spec.config.eval.of(name).split)
            trained_on = library.task(spec.key.task).name
        except UserError as error:
            audit.notes.append(f"the task {specs[name]} is not available here ({error})")
            continue
        findings = other_problems(record, audit.spec, task, problems, trained_on)
        samples = answers_path(path)
        if not samples.exists():
            audit.counted += sum(map(len, record["right"]))
        elif not findings:
            findings = judged_again(audit, record, samples, task, problems, verifier, logged[record["step"]])
        where = f"{name} at step {record['step']}"
        audit.findings += [f"{where}: {finding}" for finding in findings[:LISTED]]
        if len(findings) > LISTED:
            audit.findings.append(f"{where}: and {len(findings) - LISTED} more")


def other_problems(
    record: dict[str, Any], spec: CellSpec, task: Task, problems: dict[str, Problem], trained_on: str
) -> list[str]:
    """Return how the problems of an evaluation and its counts contradict the task, as sentences."""
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
    audit: CellAudit,
    record: dict[str, Any],
    path: Path,
    task: Task,
    problems: dict[str, Problem],
    verifier: Verifier,
    logged: dict[str, float],
) -> list[str]:
    """Judge the answers of one evaluation, and return how verdicts, counts, scores and prompts differ, as sentences."""
    findings: list[str] = []
    kept_verdicts: list[str] = []
    new_verdicts: list[str] = []
    scores_J: list[dict[str, Any]] = []
    unconfirmed = 0
    for number, sample in enumerate(files.stream_lines(path)):
        if number == len(record["problems"]) or sample["problem"] != record["problems"][number]:
            return ["its answers are not those of its problems"]
        problem, verdicts = problems[sample["problem"]], sample["verdicts"]
        # A model's own instruction may replace that of a task, and is then part of the stored prompt.
        if sample["prompt"] != problem.prompt and not hasattr(task, "instruction"):
            findings.append(f"the prompt of {problem.id} is another one")
        if sample.get("shots", []) != [list(shot) for shot in problem.shots]:
            findings.append(f"the worked examples before {problem.id} are others")
        results = judged(task, verifier, problem, sample["responses"])
        audit.answers += len(results)
        answers, goes_on, right = [], [], []
        for place, (kept, result) in enumerate(zip(verdicts, results, strict=True)):
            answers.append(result.text)
            goes_on.append(result.goes_on)
            right.append(int(kept == Verdict.RIGHT))
            if kept == result.verdict:
                continue
            if Verdict(kept) in FAILURES or result.verdict in FAILURES:
                audit.undecided += 1
                unconfirmed += kept == Verdict.RIGHT
            else:
                findings.append(f"answer {place + 1} to {problem.id} is {result.verdict}, stored as {kept}")
        kept_verdicts += verdicts
        new_verdicts += [result.verdict for result in results]
        if right != record["right"][number]:
            findings.append(f"the counts of {problem.id} do not follow from its verdicts")
        if distinct_right(verdicts, answers) != record["right_distinct"][number]:
            findings.append(f"the distinct right answers to {problem.id} are not those stored")
        kept = [Verdict(verdict) for verdict in verdicts]
        scores_J.append(scores(sample["responses"], kept, answers, goes_on, solutions(task, problem)))
    if len(scores_J) != len(record["problems"]):
        return ["its answers are not those of its problems"]
    for verdicts in (kept_verdicts, new_verdicts):
        try:
            check_failures(verdicts, audit.spec.config.verify.max_failures)
        except TooManyFailures as failure:
            findings.append(str(failure))
    if unconfirmed:
        where = f"{record['task']} at step {record['step']}"
        audit.notes.append(f"{where}: {unconfirmed} answers stored as right could not be decided here")
    elif not findings:
        means = {}
        for key in scores_J[0]:
            if key != "avg":  # which was compared with the counts
                means[key] = fmean(of_problem[key] for of_problem in scores_J)
        findings += claims.other_values(means, record, logged, path.name)
    return findings
