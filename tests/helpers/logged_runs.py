"""Runs with invented curves, as a trainer would have logged them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.diagnose.signals import OURS, LoggedRun, curve_of, signal_keys

STEPS = 40


def line(start: float, end: float, steps: int = STEPS) -> list[float]:
    """Return values at equal distances."""
    return [start + (end - start) * step / (steps - 1) for step in range(steps)]


def geometric(start: float, end: float, steps: int = STEPS) -> list[float]:
    """Return values of equal ratios."""
    return [start * (end / start) ** (step / (steps - 1)) for step in range(steps)]


def logged_run(trainer: str = OURS, /, **signals: Sequence[float]) -> LoggedRun:
    """Return a run with a value of each signal for the steps from 1 on."""
    curves = {}
    for name, values in signals.items():
        key = signal_keys(name, trainer)[0]
        curves[key] = curve_of(key, dict(enumerate(values, 1)))
    return LoggedRun(Path("run"), trainer, curves)
