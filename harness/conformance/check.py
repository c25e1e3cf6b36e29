"""The conformance check of methods: a method keeps the contract of harness/methods/verbs.py.

Every check runs the method on random batches over a small vocabulary (probe.py), as the trainer would, and compares
results that must be equal. No check knows a formula: a test against the paper's formula is a separate one
(tests/baselines/). The report adds what was measured: dropped tokens, effect and cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from rich.console import Console

import baselines
from harness.base import terminal
from harness.base.errors import UserError
from harness.base.terminal import Column
from harness.base.units import plural
from harness.conformance import computed, declared, miniature, two_ranks
from harness.conformance.probe import (
    ENTROPIES,
    FINITE,
    Failed,
    Finding,
    Subject,
    compute_outcome,
    finding_of,
    first_line_of,
    random_probe,
    require_finite,
    step_record,
)
from harness.methods.composition import DEFAULT_OBJECTIVE, Method, Table, method_classes
from harness.methods.verbs import Objective
from harness.tokens import dynamics

DRIFT = 0.3  # in logits: far enough that some ratios are beyond a clip
FULL_TABLES = 2  # of at most this many methods, every check is printed; of more, only the failures
SIGNS = {
    "positive_above": "A>0 S*>N",
    "positive_below": "A>0 S*<N",
    "negative_above": "A<0 S*>N",
    "negative_below": "A<0 S*<N",
}
LONGEST_SENTENCE = 300  # characters of a refusal


def composition(subject: Subject) -> str:
    """Join the method with every other objective and control that is sound alone."""
    method = subject.make()
    parts = [part.partition("(")[0].strip() for part in subject.spec.split("+")]
    # A control alone runs on the default objective, which another objective may replace.
    replaceable = DEFAULT_OBJECTIVE in method.named and DEFAULT_OBJECTIVE not in parts
    works = refused = 0
    unsound = []
    for name, kind in method_classes(subject.table).items():
        if name in method.named or (issubclass(kind, Objective) and not replaceable):
            continue
        spec = f"{subject.spec}+{name}"
        try:
            accepted = works_on_probe(subject, spec)
        except Exception as error:
            if not sound(subject, name):  # the finding concerns the other method
                unsound.append(name)
                continue
            raise Failed(f"{spec}: {first_line_of(error)}") from error
        works += accepted
        refused += not accepted
    summary = f"works with {works} others"
    if refused:
        summary += f", is refused with {refused} in a sentence"
    if unsound:
        summary += f", was not joined with {', '.join(unsound)}, which fail alone"
    return summary


def works_on_probe(subject: Subject, spec: str) -> bool:
    """Return whether a composition is accepted, and require a finite loss and gradient of it."""
    try:
        method = Method.of(spec, subject.table)
    except UserError as error:
        if len(str(error)) > LONGEST_SENTENCE or "\n" in str(error):
            raise Failed(f"it is refused in more than a sentence of {LONGEST_SENTENCE} characters") from error
        return False
    outcome = compute_outcome(method, subject.probe(size=max(subject.size, method.min_group)), updates=2)
    if not (math.isfinite(outcome.loss) and torch.isfinite(outcome.gradient_TV).all()):
        raise Failed("the loss or its gradient is not finite")
    return True


def sound(subject: Subject, name: str) -> bool:
    """Return whether a method alone works on the probe, or is refused there in a sentence."""
    try:
        works_on_probe(subject, name)
    except Exception:
        return False
    return True


@dataclass(frozen=True)
class Check:
    """A check: a function that returns a summary or raises Failed, and advice on how to fix a failure."""

    run: Callable[[Subject], str]
    advice: str


CHECKS = {
    "needs": Check(
        declared.needs, "declare in `needs` what the verbs read, and nothing else (entropy_now: without gradient)"
    ),
    "elsewhere": Check(
        declared.elsewhere,
        "declare reads_answers, reads_base or reads_sampler if a verb reads the batch's answers_B, base_right_B or "
        "behaviour_logp_T, and only then; read no sequences, prompt_lengths_B or copy_of_B",
    ),
    "gradient": Check(
        computed.gradient,
        "leave out float(), item() and data, by which the present policy reaches the loss unseen by autograd; use "
        "detach() for values without gradient",
    ),
    "direction": Check(
        computed.direction,
        "look for a sign or a factor that detach() hides, as in 2 * j.detach() - j; an estimator that is meant so "
        "declares follows_advantage = False",
    ),
    "micro-batches": Check(computed.micro_batches, declared.MARKS),
    "order": Check(
        computed.order,
        "let no token depend on its place in the batch: break ties with batch.global_order, draw with batch.uniform_T",
    ),
    "rewards": Check(
        computed.rewards, "declare ignores_rewards = True if `advantages` does not read batch.rewards_B, and only then"
    ),
    "twice": Check(
        computed.twice,
        "draw with batch.uniform_T or uniform_B, change no tensor in place, and update a memory in observe alone",
    ),
    "edges": Check(computed.edges, FINITE),
    "weights": Check(
        computed.weights, "a weight is the share by which a token counts, 0 or more; change signs in reshape"
    ),
    "denominators": Check(
        computed.denominators, "give kept tokens the weight 1, or set reference_denominator for the other denominator"
    ),
    "token weights": Check(declared.token_weights, "set by_response = True in the objective"),
    "by response": Check(declared.by_response, "set by_response = False, or give all tokens of a response one weight"),
    "silence": Check(declared.silence, "set silent_without_signal = False"),
    "memory": Check(computed.memory, "keep everything that observe changes in `remembered`, as numbers"),
    "composition": Check(composition, "a verb must accept any advantages; raise UserError to refuse a composition"),
}


def run_checks(spec: str, table: Table) -> list[Finding]:
    """Run all checks that need one process and no model."""
    subject = Subject(spec, table)
    return [finding_of(name, check.advice, partial(check.run, subject)) for name, check in CHECKS.items()]


# The report


@dataclass(frozen=True)
class Report:
    """All findings about a method."""

    method: str
    findings: list[Finding]

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.passed]

    @property
    def numbers(self) -> dict[str, float]:
        return {name: number for finding in self.findings for name, number in finding.numbers.items()}

    @property
    def idle(self) -> list[str]:
        """The controls that changed nothing on the probe."""
        numbers, beginning = self.numbers.items(), "effect/"
        return [name.removeprefix(beginning) for name, number in numbers if name.startswith(beginning) and not number]

    def plain(self) -> dict[str, Any]:
        """Return the report as JSON shows it."""
        return {"passed": not self.failed, **asdict(self)}


def check_methods(specs: Sequence[str], plugins: Sequence[str]) -> list[Report]:
    """Check methods; one pair of processes checks all of them on two ranks."""
    table = baselines.table(plugins, {})
    in_one_process = {spec: run_checks(spec, table) for spec in specs}
    on_two_ranks = two_ranks.check_on_two_ranks(specs, plugins)
    reports = []
    for spec in specs:
        measured = [finding_of(name, SEE_OTHERS, partial(measure, spec, table)) for name, measure in MEASURES.items()]
        reports.append(Report(spec, [*in_one_process[spec], on_two_ranks[spec], *measured]))
    return reports


def construction_failed(spec: str, why: str) -> Report:
    """Return the report of a plugin's method that cannot be built."""
    return Report(spec, [Finding("construction", False, why, "see that its class can be made without options")])


def training(spec: str, table: Table) -> tuple[str, dict[str, float]]:
    """Train a miniature, and measure the cost of a step."""
    cost = miniature.relative_cost(spec, table)
    return f"{miniature.ROUNDS} real steps of a tiny model; each costs {cost:.2f} of GRPO's", {"cost": cost}


def dropped_shares(spec: str, table: Table) -> tuple[str, dict[str, float]]:
    """Measure the share of each quadrant's tokens without gradient, on a random batch where the policy has moved."""
    method, grpo = Method.of(spec, table), Method.of(DEFAULT_OBJECTIVE, table)
    probe = random_probe(11, groups=64, size=max(8, method.min_group), drift=DRIFT)
    # `old` also has the statistics that the trainer computes only before the update; here of the policy that has moved.
    present = replace(probe, old_logits_TV=probe.logits_TV).old
    rows = dynamics.lens(method, grpo, probe.old, probe.batch, [probe.batch], present)
    clauses = [f"{sign} {rows[name].dropped:.1%}" for name, sign in SIGNS.items()]
    return f"without gradient: {', '.join(clauses)}", {f"dropped/{name}": rows[name].dropped for name in SIGNS}


def effect(spec: str, table: Table) -> tuple[str, dict[str, float]]:
    """Measure how much each control changes the gradient on the batches of the other checks."""
    subject = Subject(spec, table)
    changes = {name: change_by(subject, name) for name in subject.make().controls}
    clauses = [f"{name} changes the gradient by {change:.1%}" for name, change in changes.items() if change]
    if idle := [name for name, change in changes.items() if not change]:
        clauses.append(f"{', '.join(idle)} changed nothing on the probe: give options with which it does something")
    summary = ", ".join(clauses) or "the method has no controls"
    return summary, {f"effect/{name}": change for name, change in changes.items()}


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


SEE_OTHERS = "see the other checks; if all passed, report it: they should not have"
MEASURES = {"training": training, "tokens": dropped_shares, "effect": effect}


def print_reports(console: Console, reports: Sequence[Report]) -> None:
    """Print tables of the findings, advice on every failure, and a closing line."""
    width = terminal.width_of(console)
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
            console.print(terminal.folded(note, width))
    for report in reports:
        for line in failures_of(report):
            console.print(terminal.folded(line, width))
    methods, failed = plural(len(reports), "method"), sum(bool(report.failed) for report in reports)
    console.print(f"{failed} of {methods} failed" if failed else f"{methods} checked: all passed")
    scope = (
        "Random batches in float64 over 7 tokens, and 2 real processes. Not checked: whether a formula is that of "
        "its paper (for that, write a test in tests/baselines/test_methods.py), and whether it helps."
    )
    console.print(terminal.folded(scope, width), style="dim")


def print_report(console: Console, report: Report) -> None:
    columns = [Column(report.method), Column(""), Column("seen", folds=True)]
    rows = [[each.check, "passed" if each.passed else "FAILED", each.message] for each in report.findings]
    terminal.show_table(console, columns, rows, pad_edge=False)
    console.print()


def print_overview(console: Console, reports: Sequence[Report]) -> None:
    """Print a table with one line for each method."""
    columns = [Column("method"), Column("passed", right=True), Column("cost", right=True), Column("failed", folds=True)]
    rows = []
    for report in reports:
        passed = f"{len(report.findings) - len(report.failed)} of {len(report.findings)}"
        cost = f"{report.numbers['cost']:.2f}" if "cost" in report.numbers else ""
        failed = ", ".join(finding.check for finding in report.failed)
        rows.append([report.method, passed, cost, failed])
    terminal.show_table(console, columns, rows, pad_edge=False)
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
        advice = findings[0].advice if same_advice else "these have one cause: fix it first"
        lines.append(f"{report.method}, {checked}: {message}. {advice[0].upper()}{advice[1:]}.")
    return lines
