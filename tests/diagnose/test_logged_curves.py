"""Curves: smoothing against a loop, ends, crossings and bars."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from harness.diagnose.signals import BARS_SHOWN, curve_of


def test_smoothing_is_the_median_of_five_and_of_fewer_at_the_ends() -> None:
    values = np.random.default_rng(0).normal(size=20).tolist()
    curve = curve_of("x", dict(enumerate(values)))
    for place, value in enumerate(curve.smooth):
        assert value == np.median(values[max(place - 2, 0) : place + 3])
    assert curve.start == np.median(values[:3])
    assert curve.end == np.median(values[-3:])


def test_curve_smoothed_despite_outliers() -> None:
    outliers = curve_of("x", dict(enumerate([1.0] * 10 + [9.0, 9.0] + [1.0] * 10)))
    assert set(outliers.smooth) == {1.0}
    assert outliers.since(lambda value: value > 2) is None
    change = curve_of("x", dict(enumerate([1.0] * 10 + [9.0] * 10, 1)))
    assert change.since(lambda value: value > 2) == 11


def test_points_in_any_order_and_numbers_that_are_not_finite() -> None:
    curve = curve_of("x", {3: nan, 1: 1.0, 4: 4.0, 2: inf})
    assert (curve.steps, curve.values, curve.lost) == ([1, 4], [1.0, 4.0], 2)
    assert curve_of("x", {1: nan}).steps == []
    assert curve_of("x", {1: 1e308, 2: -1e308}).steps == [], "their sum, or their difference, has no end"


@pytest.mark.parametrize(("step", "value"), [(0, 1.0), (10, 1.0), (14, 1.0), (20, 2.0), (99, 3.0)])
def test_curve_value_at_a_step(step: int, value: float) -> None:
    curve = curve_of("x", {10: 1.0, 20: 2.0, 30: 3.0})
    assert curve.at(step, smoothed=False) == value
    assert curve.at(step) == 2.0


def test_many_values_share_a_bar() -> None:
    curve = curve_of("x", dict(enumerate([0.0] * 500 + [1.0] * 500)))
    assert curve.bars() == "▁" * (BARS_SHOWN // 2) + "█" * (BARS_SHOWN // 2)
    assert curve_of("x", {1: 0.0, 2: 1.0}).bars() == "▁█"
