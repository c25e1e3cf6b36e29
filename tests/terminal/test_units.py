"""Counts and times as text."""

from __future__ import annotations

import pytest

from harness.terminal.units import plural


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
def test_a_count_with_its_noun(arguments: tuple[int, str] | tuple[int, str, str], text: str) -> None:
    assert plural(*arguments) == text
