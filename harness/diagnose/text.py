"""A diagnosis as text for the terminal, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from harness.base import terminal
from harness.diagnose.course import HEALTHY
from harness.diagnose.rules import Diagnosis, FoundCause, Rule, needed_keys
from harness.diagnose.signals import LoggedRun, MetricCurve

SHOWN = ("entropy", "reward", "distinct")  # signals whose curves are shown below every verdict


def diagnosis_text(diagnosis: Diagnosis, width: int | None) -> str:
    """Return a diagnosis as lines of at most this width, apart from curves."""
    return "".join(f"{folded_line(line, width)}\n" for line in diagnosis_lines(diagnosis))


def folded_line(line: str, width: int | None) -> str:
    """Return a sentence wrapped at word boundaries; a line with a sparkline stays whole."""
    indent = line[: len(line) - len(line.lstrip())]
    if width is None or line.startswith("  |") or len(line) <= width:  # "  |" is from curve_line
        return line
    text = terminal.folded(line.strip(), width - len(indent))
    return "\n".join(f"{indent}{part}" for part in text.splitlines())


def diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    run, course = diagnosis.run, diagnosis.course
    yield f"{run.path}: {diagnosis.verdict}"
    entropy = run.signal("entropy")
    assert entropy is not None
    steps = f"{len(entropy.values):,} logged steps, {entropy.steps[0]} to {entropy.steps[-1]}"
    method = f", {run.method}" if run.method else ""
    yield f"{run.trainer}{method}: {steps}; {course.sentence}"
    yield from run.notes
    for name in SHOWN:
        curve = run.signal(name)
        if curve is not None:
            yield curve_line(curve, course.turn)
    yield from causes_lines(diagnosis)
    if diagnosis.unchecked:
        rules = [f"{rule.name.replace('_', ' ')} ({', '.join(key_texts(rule, run))})" for rule in diagnosis.unchecked]
        yield ""
        yield f"not checked, since the log lacks the curve: {'; '.join(rules)}"


def causes_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the causes with their curves and remedies, and the effects."""
    if diagnosis.causes:
        yield ""
        yield "signs to watch:" if diagnosis.verdict == HEALTHY else "likely causes, the most likely first:"
        for number, cause in enumerate(diagnosis.causes, 1):
            yield from cause_lines(f"{number}. ", cause)
    elif diagnosis.course.turn is not None:
        yield ""
        yield "no known cause shows in these curves before the turn"
    if diagnosis.effects:
        turn = diagnosis.course.turn
        yield ""
        yield f"only after the turn (step {turn}), so more likely effects than causes:"
        for cause in diagnosis.effects:
            yield from cause_lines("- ", cause)


def cause_lines(mark: str, cause: FoundCause) -> Iterator[str]:
    yield f"{mark}{cause.rule.sentence} (since step {cause.since})"
    for curve in cause.curves:
        yield curve_line(curve, cause.since, smoothed=cause.rule.smoothed)
    yield f"   remedy: {cause.rule.remedy}"


def curve_line(curve: MetricCurve, changed: int | None, *, smoothed: bool = True) -> str:
    """Return a curve as its key, its values at the start, the change and the end, and a sparkline."""
    parts = [f"{value:.3g} (step {step})" for step, value in curve_ends(curve, changed, smoothed=smoothed)]
    shown = f"{curve.key}, running median" if smoothed else curve.key  # which tables do not have
    return f"  | {shown}  {' -> '.join(parts)}  {curve.bars()}"


def curve_ends(curve: MetricCurve, changed: int | None, *, smoothed: bool) -> list[tuple[int, float]]:
    """Return step and value at the start, at the change if it lies between, and at the end."""
    first, last = curve.steps[0], curve.steps[-1]
    steps = [first]
    if changed is not None and first < changed < last:
        steps.append(changed)
    if last != first:
        steps.append(last)
    return [(step, curve.at(step, smoothed=smoothed)) for step in steps]


def key_texts(rule: Rule, run: LoggedRun) -> list[str]:
    """Return the keys that a rule needs, each with the name of its trainer if that is not the run's."""
    return [key if owner == run.trainer else f"{owner}: {key}" for owner, key in needed_keys(rule, run.trainer)]


# JSON


def diagnosis_record(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as plain values; all numbers are finite, as JSON requires."""
    run, course = diagnosis.run, diagnosis.course
    curves = [run.signal(name) for name in SHOWN]
    return {
        "path": str(run.path),
        "trainer": run.trainer,
        "method": run.method,
        "notes": run.notes,
        "verdict": diagnosis.verdict,
        "sentence": course.sentence,
        "turn": course.turn,
        "curves": [curve_record(curve, course.turn) for curve in curves if curve is not None],
        "causes": list(map(cause_record, diagnosis.causes)),
        "effects": list(map(cause_record, diagnosis.effects)),
        "unchecked": {rule.name: key_texts(rule, run) for rule in diagnosis.unchecked},
    }


def cause_record(cause: FoundCause) -> dict[str, Any]:
    return {
        "name": cause.rule.name,
        "cause": cause.rule.sentence,
        "since": cause.since,
        "curves": [curve_record(curve, cause.since, smoothed=cause.rule.smoothed) for curve in cause.curves],
        "remedy": cause.rule.remedy,
    }


def curve_record(curve: MetricCurve, changed: int | None, *, smoothed: bool = True) -> dict[str, Any]:
    ends = [{"step": step, "value": value} for step, value in curve_ends(curve, changed, smoothed=smoothed)]
    assert all(isfinite(end["value"]) for end in ends)
    return {"key": curve.key, "values": ends, "first_not_finite": curve.lost}
