from __future__ import annotations

import pytest

from harness.base.units import plural, sparkline


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, "cell"), "0 cells"),
        ((1, "cell"), "1 cell"),
        ((2, "cell"), "2 cells"),
        ((1200, "run"), "1,200 runs"),
        ((1, "process", "processes"), "1 process"),
        ((2, "process", "processes"), "2 processes"),
    ],
)
def test_plural(arguments: tuple[int, str] | tuple[int, str, str], text: str) -> None:
    assert plural(*arguments) == text


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([1.0], "▅"),
        ([2.0, 2.0], "▅▅"),
        ([0.0, 1.0], "▁█"),
        ([7.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "█▁▂▃▄▅▆▇"),
        ([0.0, float("nan"), 1.0, float("inf")], "▁ █ "),
        ([float("nan")], " "),
    ],
)
def test_sparklines(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars
