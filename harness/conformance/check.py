"""The conformance check of methods: broken rules, dropped tokens, effect and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console

import baselines
from harness.conformance import checks, miniature, two_ranks
from harness.conformance.probe import compute_outcome, random_probe
from harness.conformance.subject import ENTROPIES, Finding, Subject, finding_of, require_finite, step_record
from harness.methods.composition import DEFAULT_OBJECTIVE, Method, Table
from harness.terminal import layout
from harness.terminal.layout import Column
from harness.tokens import dynamics

DRIFT = 0.3  # in logits: far enough that some ratios are beyond a clip
FULL_TABLES = 2  # of at most this many methods, every check is printed; of more, only the failures
SIGNS = {
    "positive_above": "A>0 S*>N",
    "positive_below": "A>0 S*<N",
    "negative_above": "A<0 S*>N",
    "negative_below": "A<0 S*<N",
}


@dataclass(frozen=True)
class Report:
    """All findings about a method."""

    method: str
    findings: list[Finding]

    @property
    def failed(self) -> list[Finding]:
        """The findings of failed checks."""
        return [finding for finding in self.findings if not finding.passed]

    @property
    def numbers(self) -> dict[str, float]:
        """The measurements of all checks."""
        numbers = {}
        for finding in self.findings:
            numbers.update(finding.numbers)
        return numbers

    @property
    def idle(self) -> list[str]:
        """The controls that changed nothing on the probe."""
        controls = []
        for name, number in self.numbers.items():
            if name.startswith("effect/") and number == 0:
                controls.append(name.removeprefix("effect/"))
        return controls

    def plain(self) -> dict[str, Any]:
        """Return the report as JSON shows it."""
        return {"passed": not self.failed, **asdict(self)}


def check_methods(specs: Sequence[str], plugins: Sequence[str]) -> list[Report]:
    """Check methods; one pair of processes checks all of them on two ranks."""
    table = baselines.table(plugins, {})
    in_one_process = {spec: checks.run_checks(spec, table) for spec in specs}
    on_two_ranks = two_ranks.check_on_two_ranks(specs, plugins)
    reports = []
    for spec in specs:
        measured = [training(spec, table), tokens(spec, table), effect(Subject(spec, table))]
        reports.append(Report(spec, [*in_one_process[spec], on_two_ranks[spec], *measured]))
    return reports


def construction_failed(spec: str, why: str) -> Report:
    """Return the report of a plugin's method that cannot be built."""
    return Report(spec, [Finding("construction", False, why, "see that its class can be made without options")])


def training(spec: str, table: Table) -> Finding:
    """Train a miniature, and return the finding with the cost of a step."""

    def train() -> tuple[str, dict[str, float]]:
        cost = miniature.relative_cost(spec, table)
        return f"{miniature.ROUNDS} real steps of a tiny model; each costs {cost:.2f} of GRPO's", {"cost": cost}

    return finding_of("training", "see the other checks; if all passed, report it: they should not have", train)


def tokens(spec: str, table: Table) -> Finding:
    """Return the finding with the shares of tokens without gradient."""
    return finding_of("tokens", "see the other checks", partial(dropped_shares, spec, table))


def dropped_shares(spec: str, table: Table) -> tuple[str, dict[str, float]]:
    """Measure the share of each quadrant's tokens without gradient, on a random batch where the policy has moved."""
    method, grpo = Method.of(spec, table), Method.of(DEFAULT_OBJECTIVE, table)
    probe = random_probe(11, groups=64, size=max(8, method.min_group), drift=DRIFT)
    # `old` also has the statistics that the trainer computes only before the update; here of the policy that has moved.
    present = replace(probe, old_logits_TV=probe.logits_TV).old
    rows = dynamics.lens(method, grpo, probe.old, probe.batch, [probe.batch], present)
    clauses = []
    numbers = {}
    for name, sign in SIGNS.items():
        share = rows[name].dropped
        clauses.append(f"{sign} {share:.1%}")
        numbers[f"dropped/{name}"] = share
    return f"without gradient: {', '.join(clauses)}", numbers


def effect(subject: Subject) -> Finding:
    """Return the finding with the effect of each control on the gradient."""
    return finding_of("effect", "see the other checks", partial(changes, subject))


def changes(subject: Subject) -> tuple[str, dict[str, float]]:
    """Measure how much each control changes the gradient on the batches of the other checks."""
    numbers = {}
    clauses = []
    idle = []
    for name in subject.make().controls:
        number = change_by(subject, name)
        numbers[f"effect/{name}"] = number
        if number:
            clauses.append(f"{name} changes the gradient by {number:.1%}")
        else:
            idle.append(name)
    if idle:
        clauses.append(f"{', '.join(idle)} changed nothing on the probe: give options with which it does something")
    summary = ", ".join(clauses) or "the method has no controls"
    return summary, numbers


def change_by(subject: Subject, name: str) -> float:
    """Return the largest change of the gradient by a control, over some steps, as a share of the gradient's size."""
    complete = subject.make()
    others = dict(complete.controls)
    del others[name]
    without = Method(complete.base, (complete.base, complete.objective), others)
    shares = []
    for number, entropy in enumerate(ENTROPIES):
        probe = subject.step(number)
        gradient_TV = compute_outcome(complete, probe, updates=2).gradient_TV
        without_TV = compute_outcome(without, probe, updates=2).gradient_TV
        require_finite("the gradient", gradient_TV, without_TV)
        shares.append(((gradient_TV - without_TV).norm() / without_TV.norm().clamp(min=1e-300)).item())
        complete.observe(step_record(complete, probe, entropy))  # some controls act only once the entropy has moved
    return max(shares)


def print_reports(console: Console, reports: Sequence[Report]) -> None:
    """Print tables of the findings, advice on every failure, and a closing line."""
    width = layout.width_of(console)
    if len(reports) <= FULL_TABLES:
        for report in reports:
            print_report(console, report)
    else:
        print_overview(console, reports)
        idle = [report.method for report in reports if report.idle]
        if idle:
            note = (
                f"Changed nothing on the probe, so that the checks saw little of them: {', '.join(idle)}. Give options "
                "with which their controls do something."
            )
            console.print(layout.folded(note, width))
    failed = 0
    for report in reports:
        for line in failures_of(report):
            console.print(layout.folded(line, width))
        if report.failed:
            failed += 1
    methods = "1 method" if len(reports) == 1 else f"{len(reports)} methods"
    if failed:
        console.print(f"{failed} of {methods} failed")
    else:
        console.print(f"{methods} checked: all passed")
    scope = (
        "Random batches in float64 over 7 tokens, and 2 real processes. Not checked: whether a formula is that of "
        "its paper (for that, write a test in tests/baselines/test_methods.py), and whether it helps."
    )
    console.print(layout.folded(scope, width), style="dim")


def print_report(console: Console, report: Report) -> None:
    """Print a table of all checks of a method."""
    columns = [Column(report.method), Column(""), Column("seen", folds=True)]
    rows = []
    for finding in report.findings:
        rows.append([finding.check, "passed" if finding.passed else "FAILED", finding.message])
    layout.show_table(console, columns, rows, pad_edge=False)
    console.print()


def print_overview(console: Console, reports: Sequence[Report]) -> None:
    """Print a table with one line for each method."""
    columns = [
        Column("method"),
        Column("passed", right=True),
        Column("cost", right=True),
        Column("failed", folds=True),
    ]
    rows = []
    for report in reports:
        passed = f"{len(report.findings) - len(report.failed)} of {len(report.findings)}"
        cost = f"{report.numbers['cost']:.2f}" if "cost" in report.numbers else ""
        failed = ", ".join(finding.check for finding in report.failed)
        rows.append([report.method, passed, cost, failed])
    layout.show_table(console, columns, rows, pad_edge=False)
    console.print()


def failures_of(report: Report) -> list[str]:
    """Return a line for each distinct failure of a method, with advice."""
    by_message: dict[str, list[Finding]] = {}
    for finding in report.failed:
        by_message.setdefault(finding.message, []).append(finding)
    lines = []
    for message, findings in by_message.items():
        checked = ", ".join(finding.check for finding in findings)
        distinct_advice = {finding.advice for finding in findings}
        # Checks that fail with the same message have one cause, for which their different advice would mislead.
        same_advice = len(distinct_advice) == 1
        advice = as_sentence(findings[0].advice) if same_advice else "These have one cause: fix it first."
        lines.append(f"{report.method}, {checked}: {message}. {advice}")
    return lines


def as_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
