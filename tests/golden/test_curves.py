"""Ten steps of training with six methods against the stored curves, so that every change of the loop is noticed.

After a change that is meant to move a curve, run `python tests/helpers/curves.py` and look at the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import curves
import pytest

import baselines
from harness.train.policy import Learner

KEPT = curves.read()


def curve(name: str) -> curves.Curve:
    [(_, result)] = curves.curves([name], baselines.METHODS)
    return result


def apart(name: str) -> float:
    return max(curves.differences(KEPT[name], curve(name)).values())


@pytest.mark.slow
@pytest.mark.parametrize("name", curves.NAMES)
def test_curves_are_the_kept_ones(name: str) -> None:
    differences = curves.differences(KEPT[name], curve(name))
    moved = {column: difference for column, difference in differences.items() if difference > curves.TOLERANCE}
    assert not moved, "if that is on purpose, run python tests/helpers/curves.py"


def test_kept_curves_differ_from_grpo() -> None:
    assert tuple(KEPT) == curves.NAMES
    for name, kept in KEPT.items():
        assert all(len(column) == curves.STEPS and all(map(math.isfinite, column)) for column in kept.values())
        assert name == "grpo" or max(curves.differences(KEPT["grpo"], kept).values()) > curves.TOLERANCE
    for name in ("clip_b", "clip_v"):
        assert any(KEPT[name]["weights/dropped"])


# What must not go unnoticed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("grpo", "clip_high=0.204"),
        ("grpo", "normalise=sequence"),
        ("grpo", "kl_coef=1e-3"),
        ("grpo", "divide_by_std=false"),
        # By 2 %.
        ("ce_gppo", "beta1=0.765"),
        ("ppo", "lam=0.98"),
        ("adaptive_entropy", "target=3, delta=0.0102, highest=0.1"),
    ],
)
def test_curves_with_another_default(name: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(curves.SPECS, name, f"{name}({option})")
    assert apart(name) > 3 * curves.TOLERANCE


@pytest.mark.slow
def test_curves_of_a_changed_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def warmer(self: Learner, lr: float, step: Callable[..., float] = Learner.apply) -> float:
        return step(self, 1.01 * lr)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "apply", warmer)
        assert apart("grpo") > 5 * curves.TOLERANCE
    assert apart("grpo") < curves.TOLERANCE
