"""Errors that people can act on, and the checks that raise them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any

from harness.base.addresses import without_secrets

LONGEST = 80  # characters of what somebody wrote, in a sentence about it
SENTENCE = 300  # characters of an error, behind the name of the program
LISTED = 150  # characters of the names that are allowed


class UserError(ValueError):
    """A mistake that the user can mend: one clear sentence on one line, exit code 2, no traceback, and no password in
    it. Whatever a sentence quotes, it is never longer than SENTENCE."""

    def __init__(self, said: str) -> None:
        super().__init__(short(without_secrets(" ".join(said.splitlines())), SENTENCE))


def short(text: str, longest: int = LONGEST) -> str:
    """Returns the text, without its middle where it is long: a sentence must stay one that people read."""
    half = longest // 2 - 2
    return text if len(text) <= longest else f"{text[:half]} .. {text[-half:]}"


def shown(value: Any) -> str:
    """Returns a value as it stands in a sentence."""
    return "null" if value is None else short(repr(value))


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Returns the end of an error sentence: what is allowed (the likest of very many names), and the nearest name if
    one is near."""
    every = sorted(allowed)
    close = difflib.get_close_matches(name, every, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    likest = difflib.get_close_matches(name, every, n=len(every) or 1, cutoff=0)
    while len(", ".join(likest)) > LISTED:
        likest.pop()
    more = f" and {len(every) - len(likest)} more" if len(likest) < len(every) else ""
    return f"allowed: {', '.join(sorted(likest))}{more}{hint}"


def one_of(key: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise UserError(f"{key} is {shown(value)}; {nearest(str(value), allowed)}")


def at_least(low: float, **values: float) -> None:
    for key, value in values.items():
        if not low <= value < inf:  # nor is NaN
            raise UserError(f"{key} is {value}; allowed: {low} and more")


class Damaged(UserError):
    """A file of ours does not hold what was written to it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}")


class Unwritten(UserError, OSError):
    """Some place takes no file, or not all of one."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} cannot be written: {why}; make room there, or let it be written")


class CellFailure(Exception):
    """Training cannot go on; the message is the reason that users see."""


class Taken(CellFailure):
    """This process stood still for so long that another one took its cell over, and may write nothing more."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"another process has taken {folder} over, since this one gave no sign of life for a minute")
