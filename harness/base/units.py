"""Times, sizes, counts and small curves as text for people, and numbers as people wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isfinite

GIB = 2**30  # bytes
DAY = 86_400.0  # seconds
BARS = "▁▂▃▄▅▆▇█"


def exact(number: float) -> Fraction:
    """Return the decimal that was written for a number: the float 0.1 is slightly more than a tenth."""
    return Fraction(repr(float(number)))  # repr is the shortest decimal with the same float


def plural(number: int, noun: str, several: str | None = None) -> str:
    """Return a count with its noun: 1 cell, 2 cells; `several`: an irregular plural."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {several or noun + 's'}"


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {seconds:02d} s"


def about_duration(seconds: float) -> str:
    if seconds > 3 * DAY:
        return f"about {seconds / DAY:,.0f} days"
    return f"about {duration(seconds)}"


def gib(number: int) -> str:
    if number >= GIB / 10:
        return f"{number / GIB:,.1f} GiB"
    return f"{number / 2**20:,.0f} MiB"


def short_count(number: int) -> str:
    for factor, name in ((10**9, "billion"), (10**6, "million")):
        if number >= factor:
            return f"{number / factor:.3g} {name}"
    return f"{number:,}"


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value, scaled from the lowest to the highest; a blank for a value that is not finite."""
    finite_values = list(filter(isfinite, values))
    low, high = min(finite_values, default=0.0), max(finite_values, default=0.0)

    def bar(value: float) -> str:
        if not isfinite(value):
            return " "
        fraction = (value - low) / (high - low) if high > low else 0.5
        return BARS[round(fraction * (len(BARS) - 1))]

    return "".join(map(bar, values))
