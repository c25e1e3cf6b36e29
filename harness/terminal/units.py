"""Times, sizes and counts as text for people."""

from __future__ import annotations

GIB = 2**30  # bytes
DAY = 86_400.0  # seconds


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
