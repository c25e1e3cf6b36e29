"""Ten steps of training with every method, compared with those that are kept: no change of the loop goes unnoticed.

What moves a curve on purpose is followed by `python -m benchmarks.golden`, and by a look at the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import baselines
from benchmarks import golden
from harness.train.policy import Learner

KEPT = golden.read()


def curve(name: str) -> golden.Curve:
    [(_, found)] = golden.curves([name], baselines.METHODS)
    return found


def apart(name: str) -> float:
    return max(golden.differences(KEPT[name], curve(name)).values())


@pytest.mark.slow
@pytest.mark.parametrize("name", baselines.METHODS)
def test_the_method_does_what_it_did(name: str) -> None:
    assert name in KEPT, f"run python -m benchmarks.golden {name}"
    found = golden.differences(KEPT[name], curve(name))
    moved = {column: difference for column, difference in found.items() if difference > golden.TOLERANCE}
    assert not moved, "if that is what was meant, run python -m benchmarks.golden"


def test_every_curve_is_of_a_method_that_is_there_and_does_something() -> None:
    assert list(KEPT) == list(baselines.METHODS)
    for name, kept in KEPT.items():
        assert all(len(column) == golden.STEPS and all(map(math.isfinite, column)) for column in kept.values())
        assert name == "grpo" or max(golden.differences(KEPT["grpo"], kept).values()) > golden.TOLERANCE
    assert any(share for name in ("clip_b", "clip_v", "top_entropy") for share in KEPT[name]["weights/dropped"])


# What must not go unnoticed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("grpo", "clip_high=0.204"),
        ("grpo", "normalise=sequence"),
        ("grpo", "kl_coef=1e-3"),
        ("grpo", "divide_by_std=false"),
        # Those that move least of all: 2 % more.
        ("gspo", "clip_low=3.06e-4"),
        ("aspo", "high_entropy_kl=0.01"),
        ("siren", "coefficient=0.0051"),
        ("entropic", "target=2.6, k_p=1.02"),
        ("entropy_advantage", "scale=0.102"),
    ],
)
def test_another_default_moves_the_curve(name: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(golden.SPECS, name, f"{name}({option})")
    assert apart(name) > 3 * golden.TOLERANCE


@pytest.mark.slow
def test_a_change_of_the_loop_moves_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    def warmer(self: Learner, lr: float, step: Callable[..., float] = Learner.apply) -> float:
        return step(self, 1.01 * lr)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "apply", warmer)
        assert apart("grpo") > 5 * golden.TOLERANCE
    assert apart("grpo") < golden.TOLERANCE
