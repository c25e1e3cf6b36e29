"""Errors that people can act on, and the checks that raise them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class UserError(ValueError):
    """A mistake that the user can mend: one clear sentence, exit code 2, no traceback."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The end of an error sentence: what is allowed, and the closest name if one is close."""
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"allowed: {', '.join(names)}{hint}"


def one_of(key: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise UserError(f"{key} is {value!r}; {nearest(str(value), allowed)}")


def at_least(low: float, **values: float | None) -> None:
    for key, value in values.items():
        if value is not None and value < low:
            raise UserError(f"{key} is {value}; allowed: {low} and more")


def fraction(**values: float | None) -> None:
    for key, value in values.items():
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"{key} is {value}; allowed: 0 to 1")


class Damaged(UserError):
    """A file of ours does not hold what was written to it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}")


class CellFailure(Exception):
    """Training cannot go on; the message is the reason that users see."""
