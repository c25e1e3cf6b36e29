"""Checks methods as a whole: what they break, what they drop, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console

import baselines
from harness.composition import STANDS_ON, Method, Table
from harness.conformance import checks, miniature, two_ranks
from harness.conformance.probe import outcome, probe
from harness.conformance.subject import ENTROPIES, Finding, Subject, finding, record, require_finite
from harness.terminal import layout
from harness.terminal.layout import Column
from harness.tokens import dynamics

DRIFT = 0.3  # in logits: the policy has moved so far that some ratios are beyond a clip
FULL = 2  # methods whose tables are printed whole; of more, what failed
SIGNS = {
    "positive_above": "A>0 S*>N",
    "positive_below": "A>0 S*<N",
    "negative_above": "A<0 S*>N",
    "negative_below": "A<0 S*<N",
}


@dataclass(frozen=True)
class Report:
    """Holds all that was found about a method."""

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
        effects = {name: number for name, number in self.numbers.items() if name.startswith("effect/")}
        return [name.removeprefix("effect/") for name, number in effects.items() if not number]

    def plain(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        return {"passed": not self.failed, **asdict(self)}


def reports(specs: Sequence[str], plugins: Sequence[str]) -> list[Report]:
    """Checks methods; the ranks of all of them are started once."""
    table = baselines.table(plugins, {})
    alone = {spec: checks.alone(spec, table) for spec in specs}
    together = two_ranks.check(specs, plugins)
    return [
        Report(
            spec,
            [*alone[spec], together[spec], training(spec, table), tokens(spec, table), effect(Subject(spec, table))],
        )
        for spec in specs
    ]


def unmade(spec: str, why: str) -> Report:
    """Return the report of a method of a plugin that cannot even be made."""
    return Report(spec, [Finding("construction", False, why, "see that its class can be made without options")])


def training(spec: str, table: Table) -> Finding:
    def run() -> tuple[str, dict[str, float]]:
        cost = miniature.cost(spec, table)
        said = f"{miniature.ROUNDS} real steps of a tiny model; each costs {cost:.2f} of GRPO's"
        return said, {"cost": cost}

    return finding("training", "see the other checks; if all passed, report it: they should not have", run)


def tokens(spec: str, table: Table) -> Finding:
    return finding("tokens", "see the other checks", partial(dropped, spec, table))


def dropped(spec: str, table: Table) -> tuple[str, dict[str, float]]:
    """Finds the share of each quadrant's tokens that have no gradient, on a random batch where the policy has moved."""
    method, plain = (Method.of(each, table) for each in (spec, STANDS_ON))
    given = probe(11, groups=64, size=max(8, method.min_group), drift=DRIFT)
    now = replace(given, old_logits_TV=given.logits_TV).old
    rows = dynamics.lens(method, plain, given.old, given.batch, [given.batch], now)
    shares = {name: rows[name].dropped for name in SIGNS}
    said = ", ".join(f"{SIGNS[name]} {share:.1%}" for name, share in shares.items())
    return f"without gradient: {said}", {f"dropped/{name}": share for name, share in shares.items()}


def effect(subject: Subject) -> Finding:
    return finding("effect", "see the other checks", partial(changes, subject))


def changes(subject: Subject) -> tuple[str, dict[str, float]]:
    """Measure how much each control changes the gradient on the batches of the other checks."""
    numbers = {name: change_by(subject, name) for name in subject.make().controls}
    seen = [f"{name} changes the gradient by {number:.1%}" for name, number in numbers.items() if number]
    idle = [name for name, number in numbers.items() if not number]
    if idle:
        seen.append(f"{', '.join(idle)} changed nothing on the probe: give options with which it does something")
    return ", ".join(seen) or "there is no control", {f"effect/{name}": number for name, number in numbers.items()}


def change_by(subject: Subject, name: str) -> float:
    """Return the largest change of the gradient by a control, over some steps, as a share of the gradient's size."""
    whole = subject.make()
    others = {other: control for other, control in whole.controls.items() if other != name}
    without = Method(whole.base, (whole.base, whole.objective), others)
    shares = []
    for number, entropy in enumerate(ENTROPIES):
        given = subject.step(number)
        one_TV, other_TV = (outcome(method, given, updates=2).gradient_TV for method in (whole, without))
        require_finite("the gradient", one_TV, other_TV)
        shares.append(((one_TV - other_TV).norm() / other_TV.norm().clamp(min=1e-300)).item())
        whole.observe(record(whole, given, entropy))
    return max(shares)


def show(console: Console, found: Sequence[Report]) -> None:
    if len(found) <= FULL:
        for report in found:
            columns = [Column(report.method), Column(""), Column("seen", folds=True)]
            rows = [[each.check, "passed" if each.passed else "FAILED", each.said] for each in report.findings]
            layout.show_table(console, columns, rows, pad_edge=False)
            console.print()
    else:
        columns = [
            Column("method"),
            Column("passed", right=True),
            Column("cost", right=True),
            Column("failed", folds=True),
        ]
        rows = [
            [
                report.method,
                f"{len(report.findings) - len(report.failed)} of {len(report.findings)}",
                f"{report.numbers['cost']:.2f}" if "cost" in report.numbers else "",
                ", ".join(each.check for each in report.failed),
            ]
            for report in found
        ]
        layout.show_table(console, columns, rows, pad_edge=False)
        console.print()
    width = layout.width_of(console)
    idle = [report.method for report in found if report.idle]
    if idle and len(found) > FULL:
        console.print(
            layout.folded(
                f"Changed nothing on the probe, so that the checks saw little of them: {', '.join(idle)}. Give options "
                "with which their controls do something.",
                width,
            )
        )
    for report in found:
        for said in dict.fromkeys(each.said for each in report.failed):
            alike = [each for each in report.failed if each.said == said]
            checked, advice = ", ".join(each.check for each in alike), {each.advice for each in alike}
            # Checks that end in the same words have one cause, and what a single one of them advises may be beside it.
            then = sentence(alike[0].advice) if len(advice) == 1 else "These have one cause: mend it first."
            console.print(layout.folded(f"{report.method}, {checked}: {said}. {then}", width))
    failed = sum(bool(report.failed) for report in found)
    done = f"{len(found)} method" + "s" * (len(found) != 1)
    console.print(f"{failed} of {done} failed" if failed else f"{done} checked: all passed")
    console.print(
        layout.folded(
            "Random batches in float64 over 7 tokens, and 2 real processes. Not checked: whether a formula is that of "
            "its paper (write a test beside tests/baselines/test_methods.py), and whether it helps.",
            width,
        ),
        style="dim",
    )


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
