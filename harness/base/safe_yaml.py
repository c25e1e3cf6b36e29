"""YAML written by people: plain values in a file of sensible size.

Anchors and aliases are refused, since they can repeat a value without bound, tags, since they construct objects, and
OmegaConf's `${...}`, which can read the environment, and `???`, which it replaces by the default.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from harness.base.errors import UserError, short
from harness.base.files import YAML_LOADER

LARGEST = 1_000_000  # bytes of a file
MOST = 9_000  # values in it; OmegaConf itself takes no more than 10,000
DEEPEST = 20  # levels of lists and mappings
ANOTHER_NUMBER = re.compile(r"[-+]?(?:0[0-7_]+|[1-9][0-9_]*(?::[0-5]?[0-9])+)")  # octal, or to the base of 60


def read_yaml_text(path: Path) -> str:
    """Return the text of a file that passes `check_yaml_text`."""
    if not path.is_file():
        raise UserError(f"{short(str(path))} does not exist or is not a file")
    if path.stat().st_size > LARGEST:
        raise UserError(f"{short(str(path))} has more than {LARGEST} bytes; a configuration is never that large")
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{short(str(path))} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    check_yaml_text(text, short(str(path)))
    return text


def load_yaml(path: Path) -> Any:
    text = read_yaml_text(path)
    try:
        return yaml.load(text, YAML_LOADER)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date, or an endless number
        raise UserError(f"{short(str(path))} cannot be read: {reason(error)}") from error


def check_yaml_text(text: str, where: str) -> None:
    """Refuse text that is not YAML, or that uses more of YAML than plain values, lists and mappings."""
    depth = values = 0
    limits = f"is too large or too deep; allowed: {MOST} values and names, {DEEPEST} levels deep"
    try:
        for event in yaml.parse(text, YAML_LOADER):
            assert event.start_mark is not None  # events that are parsed from text have one
            line = f"{where}, line {event.start_mark.line + 1}"
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise UserError(f"{line} has a YAML anchor (& or *); write the value itself, or in quotes")
            if tag := getattr(event, "tag", None):
                raise UserError(f"{line} has a YAML tag ({short(tag)}); write the value without it, or in quotes")
            if isinstance(event, yaml.ScalarEvent):
                check_scalar(event.value, line)
                if event.implicit[0] and ANOTHER_NUMBER.fullmatch(event.value):  # without quotes
                    written = short(event.value)
                    raise UserError(f"{line} has {written}, which YAML reads as another number; write it in quotes")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            values += isinstance(event, yaml.NodeEvent)
            if depth > DEEPEST or values > MOST:
                raise UserError(f"{line} {limits}")
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise UserError(f"{where} cannot be read: {reason(error, text)}") from error


def check_scalar(text: str, where: str) -> None:
    """Refuse references, and characters that files and databases do not take."""
    if "${" in text or text == "???":
        raise UserError(f"{where} has {short(text)!r}; ${{...}} and ??? are not replaced; write the value itself")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{where} has {short(ascii(text))}, with a character that is not valid")


def reason(error: Exception, text: str = "") -> str:
    """Return the message of a parser, with its line; `text` is what it parsed."""
    mark = getattr(error, "problem_mark", None)
    message = short(getattr(error, "problem", None) or str(error).partition("\n")[0])
    if mark is None:
        return message
    line = "".join(text.splitlines()[mark.line : mark.line + 1])
    if "\t" in line[: mark.column + 1]:
        return f"line {mark.line + 1} has a tab; YAML is indented by blanks"
    context, begin = getattr(error, "context", None), getattr(error, "context_mark", None)
    if begin is not None and context is not None and "flow" in context:
        return f"the bracket that line {begin.line + 1} opens is not closed"
    return f"{message} (line {mark.line + 1})"
