"""Each rule on invented curves: the exact diagnosis where it just holds, and none where it just does not."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import pytest
from logged_runs import STEPS, geometric, line, logged_run

from harness.diagnose.course import ANY
from harness.diagnose.rules import RULES, Rule, diagnose_run, needed_keys
from harness.diagnose.signals import OURS, TRL, VERL

ENTROPY = {"fell": geometric(1.0, 0.2), "exploded": geometric(1.0, 5.0), "healthy": [1.0] * STEPS}
Signals = dict[str, Sequence[float]]


def constant(value: float) -> list[float]:
    return [value] * STEPS


def jump(step: int, before: float, after: float) -> list[float]:
    """Return a curve that changes from one value to another at a step."""
    return [before] * (step - 1) + [after] * (STEPS - step + 1)


def spike(height: float) -> list[float]:
    return [1.0] * 9 + [height] + [1.0] * (STEPS - 10)


# By rule: the verdict, curves for which it holds since a step, and curves that just miss it. Signals that only verl or
# TRL logs are tested with their keys.
CASES: dict[str, tuple[str, Signals, int, Signals]] = {
    "entropy_not_finite": ("fell", {"entropy": [*ENTROPY["fell"][:30], nan, *ENTROPY["fell"][31:]]}, 31, {}),
    "gradient_not_finite": ("exploded", {"gradient": [1.0] * 7 + [nan] * 33}, 8, {"gradient": constant(1.0)}),
    "constant_reward": ("fell", {"reward": constant(0.0)}, 1, {"reward": [*constant(0.0)[1:], 0.01]}),
    "engine_mismatch": ("fell", {"mismatch": jump(3, 1e-6, 0.03)}, 3, {"mismatch": jump(3, 1e-6, 0.0299)}),
    "strong_bonus": ("exploded", {"bonus": [0.3]}, 1, {"bonus": [0.0]}),
    "negative_mass": (
        "exploded",
        {"negative_mass": constant(1.51), "positive_mass": constant(1.0)},
        1,
        {"negative_mass": constant(1.49), "positive_mass": constant(1.0)},
    ),
    "positive_mass": (
        "fell",
        {"negative_mass": constant(1.0), "positive_mass": constant(1.51)},
        1,
        {"negative_mass": constant(1.0), "positive_mass": constant(1.49)},
    ),
    "gradient_spikes": ("exploded", {"gradient": spike(10.1)}, 10, {"gradient": spike(9.9)}),
    "large_steps": ("exploded", {"step_kl": jump(4, 0.0, -0.1)}, 4, {"step_kl": jump(4, 0.0, -0.099)}),
    "clip_often_active": ("fell", {"clipped": jump(6, 0.01, 0.03)}, 6, {"clipped": jump(6, 0.01, 0.0299)}),
    "far_from_reference": ("fell", {"reference_kl": jump(7, 0.1, 1.0)}, 7, {"reference_kl": jump(7, 0.1, 0.99)}),
    "unreadable_answers": ("healthy", {"unparsed": jump(5, 0.1, 0.5)}, 5, {"unparsed": jump(5, 0.1, 0.499)}),
    "truncated_responses": ("exploded", {"truncated": jump(9, 0.2, 0.301)}, 9, {"truncated": jump(9, 0.2, 0.299)}),
    "text_after_answer": ("exploded", {"after_answer": jump(9, 0.0, 0.1)}, 9, {"after_answer": jump(9, 0.0, 0.099)}),
    "saturated_reward": ("fell", {"right": line(0.2, 0.6, 5) + [0.9] * 35}, 6, {"right": [*constant(0.89)[1:], 0.88]}),
    "few_signals": ("fell", {"without_signal": jump(8, 0.1, 0.5)}, 8, {"without_signal": jump(8, 0.1, 0.499)}),
    "fewer_distinct_answers": ("healthy", {"distinct": jump(8, 0.6, 0.3)}, 8, {"distinct": jump(8, 0.6, 0.301)}),
    "clip_never_active": ("fell", {"clipped": constant(0.0)}, 1, {"clipped": [*constant(0.0)[1:], 1e-5]}),
    "unlikely_wrong_tokens": (
        "fell",
        {"push_unlikely_wrong": constant(-2.0), "push_likely_right": constant(-1.0)},
        1,
        {"push_unlikely_wrong": constant(2.0), "push_likely_right": constant(2.0)},
    ),
    "likely_right_tokens": (
        "fell",
        {"push_unlikely_wrong": constant(-1.0), "push_likely_right": constant(-1.1)},
        1,
        {"push_unlikely_wrong": constant(-1.0), "push_likely_right": constant(-1.0)},
    ),
}
ONLY_IN = {"step_kl": VERL, "reference_kl": VERL}


def trainer_of(signals: Signals) -> str:
    return next((ONLY_IN[name] for name in signals if name in ONLY_IN), OURS)


def test_cases_of_every_rule() -> None:
    assert list(CASES) == [rule.name for rule in RULES]
    assert all(rule.verdicts <= ANY for rule in RULES)


@pytest.mark.parametrize("name", CASES)
def test_diagnose_run_at_a_bound(name: str) -> None:
    verdict, holding, since, missing = CASES[name]
    run = logged_run(trainer_of(holding), **{"entropy": ENTROPY[verdict], **holding})
    diagnosis = diagnose_run(run)
    assert diagnosis.verdict == verdict
    findings = [*diagnosis.causes, *diagnosis.effects]
    assert [(finding.rule.name, finding.since) for finding in findings if finding.rule.name == name] == [(name, since)]
    others = {finding.rule.name for finding in findings} - {name}
    assert others <= {"saturated_reward", "constant_reward"}  # the two that read the reward for other reasons
    below = logged_run(trainer_of(missing), **{"entropy": ENTROPY[verdict], **missing})
    assert name not in {finding.rule.name for finding in (*diagnose_run(below).causes, *diagnose_run(below).effects)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_diagnose_run_with_other_verdicts(rule: Rule) -> None:
    name = rule.name
    _, holding, _, _ = CASES[name]
    for verdict, entropy in ENTROPY.items():
        signals = {**holding, "entropy": entropy}
        diagnosis = diagnose_run(logged_run(trainer_of(holding), **signals))
        named = {finding.rule.name for finding in (*diagnosis.causes, *diagnosis.effects)}
        expected = verdict in rule.verdicts and name != "entropy_not_finite"
        assert (name in named) == expected


def test_diagnose_run_with_a_missing_curve() -> None:
    diagnosis = diagnose_run(logged_run(TRL, entropy=ENTROPY["fell"], clipped=constant(0.01)))
    unchecked = {rule.name: needed_keys(rule, TRL) for rule in diagnosis.unchecked}
    assert unchecked["gradient_spikes"] == [(TRL, "grad_norm")]
    assert unchecked["few_signals"] == [(TRL, "frac_reward_zero_std")]
    assert unchecked["unreadable_answers"] == [(OURS, "verdicts/unparsed")]
    assert "large_steps" not in unchecked  # only verl logs its curve
    assert not diagnosis.causes
    assert "clip_often_active" not in unchecked
    assert "strong_bonus" not in unchecked  # a cause of a rise


def test_diagnose_run_causes_before_the_turn() -> None:
    for step, comes_first in ((21, True), (22, False)):
        diagnosis = diagnose_run(logged_run(entropy=ENTROPY["fell"], without_signal=jump(step, 0.1, 0.6)))
        assert diagnosis.course.turn == 21
        assert [finding.rule.name for finding in diagnosis.causes] == ["few_signals"] * comes_first
        assert [finding.rule.name for finding in diagnosis.effects] == ["few_signals"] * (not comes_first)


def test_diagnose_run_with_a_vanishing_gradient() -> None:
    gradient = [0.3] * 8 + [0.0] * 32
    diagnosis = diagnose_run(logged_run(entropy=ENTROPY["exploded"], gradient=gradient))
    assert not diagnosis.causes


def test_causes_are_in_the_order_of_the_table_and_a_short_run_has_none() -> None:
    signals = {"mismatch": constant(0.1), "clipped": constant(0.2), "without_signal": constant(0.9)}
    diagnosis = diagnose_run(logged_run(entropy=ENTROPY["fell"], **signals))
    names = [finding.rule.name for finding in diagnosis.causes]
    assert names == ["engine_mismatch", "clip_often_active", "few_signals"]
    short = diagnose_run(logged_run(entropy=[1.0, 0.1], **signals))
    assert (short.verdict, short.causes, short.unchecked) == ("too short to say", [], [])


def test_a_run_whose_entropy_was_lost_at_once_says_so() -> None:
    """Its few values are too few for a verdict, and their end is the cause."""
    lost = diagnose_run(logged_run(entropy=[1.0, 0.9, *[nan] * 38], gradient=[1.0, *[nan] * 39]))
    assert lost.verdict == "too short to say"
    assert [(finding.rule.name, finding.since) for finding in lost.causes] == [
        ("entropy_not_finite", 3),
        ("gradient_not_finite", 2),
    ]


@pytest.mark.parametrize("entropy", [ENTROPY["fell"], [1.0]], ids=["fell", "too short"])
def test_a_run_whose_gradient_was_never_finite_says_so(entropy: list[float]) -> None:
    [cause, *others] = diagnose_run(logged_run(TRL, entropy=entropy, gradient=constant(nan))).causes
    assert (cause.rule.name, cause.since, cause.curves, others) == ("gradient_not_finite", 1, (), [])
