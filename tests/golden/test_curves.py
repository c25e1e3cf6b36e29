"""Ten steps of training with six methods against the stored curves, so that every change of the loop is noticed.

After a change that is meant to move a curve, run `python tests/helpers/curves.py` and look at the difference.
"""

from __future__ import annotations

import math

import curves
import pytest

import baselines

KEPT = curves.read()


@pytest.mark.slow
@pytest.mark.parametrize("name", curves.NAMES)
def test_curves_are_the_kept_ones(name: str) -> None:
    [(_, curve)] = curves.curves([name], baselines.METHODS)
    differences = curves.differences(KEPT[name], curve)
    moved = {column: difference for column, difference in differences.items() if difference > curves.TOLERANCE}
    assert not moved, "if that is on purpose, run python tests/helpers/curves.py"


def test_kept_curves_differ_from_grpo() -> None:
    assert tuple(KEPT) == curves.NAMES
    for name, kept in KEPT.items():
        assert all(len(column) == curves.STEPS and all(map(math.isfinite, column)) for column in kept.values())
        assert name == "grpo" or max(curves.differences(KEPT["grpo"], kept).values()) > curves.TOLERANCE
    for name in ("clip_b", "clip_v"):
        assert any(KEPT[name]["weights/dropped"])
