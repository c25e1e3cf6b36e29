"""Errors for users, and the checks that raise them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.base.addresses import without_secrets

LONGEST = 80  # characters of a quoted value in a message
SENTENCE = 300  # characters of a message, after the name of the program
LISTED = 180  # characters of the list of allowed names


class UserError(ValueError):
    """A mistake of the user: one sentence without secrets; the program ends with exit code 2, without a traceback."""

    def __init__(self, message: str) -> None:
        super().__init__(short(without_secrets(" ".join(message.splitlines())), SENTENCE))

    def __reduce__(self) -> tuple[type[UserError], tuple[str]]:
        """Let another process receive the sentence: a class below takes other arguments."""
        return UserError, (str(self),)


def short(text: str, longest: int = LONGEST) -> str:
    """Return the text, without its middle if it is too long for a message."""
    if len(text) <= longest:
        return text
    half = longest // 2 - 2  # less two characters each, for the four between the halves
    return f"{text[:half]} .. {text[-half:]}"


def shown(value: Any) -> str:
    """Return a value as a message quotes it."""
    return "null" if value is None else short(repr(value))


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return the end of a message: the allowed names, and the nearest one if it is near.

    If the list would be too long, the names that differ most from the wrong one are left out.
    """
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    listed = difflib.get_close_matches(name, names, n=len(names) or 1, cutoff=0)  # n=0 would be refused
    while len(", ".join(listed)) > LISTED:
        listed.pop()
    more = f" and {len(names) - len(listed)} more" if len(listed) < len(names) else ""
    return f"allowed: {', '.join(sorted(listed))}{more}{hint}"


def one_of(key: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise UserError(f"{key} is {shown(value)}; {nearest(str(value), allowed)}")


def at_least(low: float, **values: float) -> None:
    for key, value in values.items():
        if not low <= value < 1e100:  # false for NaN too; a product with a larger number may be endless
            raise UserError(f"{key} is {value}; allowed: {low} and more")


def root_cause(error: BaseException) -> BaseException:
    """Return the innermost of the errors that led to this one."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


class Damaged(UserError):
    """A file of this program does not contain the data that was written to it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}")


class Unwritten(UserError, OSError):
    """A file could not be written, or not completely."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} cannot be written: {why}; free some space, or change its permissions")


class CellFailure(Exception):
    """The training of a cell cannot continue; the message is shown to the user."""


class Taken(CellFailure):
    """This process was paused for so long that another one took over its cell; it must not write any more."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"another process took over {folder}, since this one gave no sign of life for a minute")
