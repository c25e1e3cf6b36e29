"""The figures of remedies are those of results/reference, at the options that the demo gives to the methods."""

from __future__ import annotations

import json
from typing import Any

import pytest
from places import REPOSITORY

from harness import config
from harness.diagnose.remedies import MEASURED, Difference
from harness.diagnose.rules import RULES

REFERENCE = REPOSITORY / "results/reference"


def reference_row(folder: str, method: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = json.loads((REFERENCE / folder / "leaderboard.json").read_text())
    [row] = [row for row in rows if row["method"] == method]
    return row


def difference(estimate: dict[str, float]) -> Difference:
    return Difference(round(estimate["mean"], 3), round(estimate["high"] - estimate["mean"], 3))


@pytest.mark.parametrize("name", MEASURED)
def test_figures_are_those_of_the_reference(name: str) -> None:
    measured, first, second = MEASURED[name], reference_row("demo", name), reference_row("demo-avx2", name)
    assert measured.pass_at_16 == difference(first["delta_pass_at_k"]["16"])
    assert measured.avg_at_k == difference(first["delta_to_baseline"])
    assert measured.pass_at_16_avx2 == difference(second["delta_pass_at_k"]["16"])
    assert measured.avg_at_k_avx2 == difference(second["delta_to_baseline"])


@pytest.mark.parametrize("name", MEASURED)
def test_the_options_are_those_of_the_demo(name: str) -> None:
    options = config.load_config("demo").method_options[name]
    listed = ", ".join(f"{key}={value}" for key, value in options.items())
    assert MEASURED[name].spec == f"{name}({listed})"


def test_rules_name_measured_methods_only() -> None:
    assert {name for rule in RULES for name in rule.measured} <= MEASURED.keys()


@pytest.mark.parametrize(
    ("mean", "half_width", "text"),
    [
        (0.193, 0.180, "+0.193 ±0.180"),
        (-0.006, 0.079, "-0.006 ±0.079, not significant"),
        (0.1, 0.1, "+0.100 ±0.100, not significant"),
    ],
)
def test_a_difference_whose_interval_holds_0_is_named(mean: float, half_width: float, text: str) -> None:
    assert str(Difference(mean, half_width)) == text
