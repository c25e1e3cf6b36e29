"""Specs such as `clip_b(share=0.02, mode=paper)` resolved against a table of dataclasses; imports no torch.

    spec   = name [ "(" [ key "=" value { "," key "=" value } ] ")" ]
    value  = scalar | "[" [ scalar { "," scalar } ] "]" | "linear(" number "," number ")"
    scalar = number | true | false | null | words | 'text, it''s quoted' | "text with \\n, \\t, \\" and \\\\"

Words hold letters, digits and _ . / ~ + - with blanks between; all other text needs quotes.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from harness.base.errors import UserError, nearest, short, shown
from harness.base.schema import typed

T = TypeVar("T")
QUOTED_OR_ONE = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|.""", re.DOTALL)
SPEC = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
INTEGER = re.compile(r"[-+]?\d{1,40}", re.ASCII)
FLOAT = re.compile(
    r"[-+]?(?:(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:e[-+]?\d{1,4})?|\.inf|\.nan)", re.ASCII | re.IGNORECASE
)
LINEAR = re.compile(r"linear\(.*\)")  # stays text, which harness/methods/schedules.py reads
WORDS = re.compile(r"[\w./~+-]+(?: +[\w./~+-]+)*")
SINGLE, DOUBLE = re.compile(r"'((?:[^']|'')*)'"), re.compile(r'"((?:[^"\\]|\\["\\nt])*)"')
ESCAPED = {'\\"': '"', "\\\\": "\\", "\\n": "\n", "\\t": "\t"}
NAMED = {  # as YAML reads them, in which configurations are written
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
    **dict.fromkeys(("null", "~"), None),
}


def split(spec: str, separator: str) -> list[str]:
    """Split at a separator, but not inside brackets or quotes."""
    parts, depth = [""], 0
    for piece in QUOTED_OR_ONE.findall(spec):
        if piece in "([":
            depth += 1
        elif piece in ")]":
            depth -= 1
        if piece == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """Parse `name(key=value, ...)` into the name and the options."""
    if not spec.strip().isprintable():
        raise UserError(f"{shown(spec)} holds an invisible character; allowed in double quotes: \\n and \\t")
    match = SPEC.fullmatch(spec)
    if match is None:
        raise UserError(f"{shown(spec)} is not a valid spec; write name or name(key=value, ...), in quotes in a list")
    name, inside = match.groups()
    options: dict[str, Any] = {}
    for part in split(inside or "", ","):
        if not part.strip():
            continue
        key, equals, written = (text.strip() for text in part.partition("="))
        if not equals:
            raise UserError(f"{shown(part.strip())} in {shown(spec)} is not an option; write key=value")
        if key in options:
            raise UserError(f"{shown(spec)} says {short(key)} twice")
        options[key] = value(written, short(f"{name}.{key}"))
    return name, options


def value(written: str, key: str) -> Any:
    if LINEAR.fullmatch(written):
        return written
    if not (written.startswith("[") and written.endswith("]")):
        return scalar(written, key)
    parts = split(written[1:-1], ",")
    if len(parts) == 1 and not parts[0].strip():  # an empty list; in a longer one, `scalar` refuses an empty part
        return []
    return [scalar(part.strip(), key) for part in parts]


def scalar(written: str, key: str) -> bool | int | float | str | None:
    """Parse a value that is not a list."""
    if INTEGER.fullmatch(written):
        return int(written)
    if FLOAT.fullmatch(written):
        return float(written.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if (name := written.lower()) in NAMED:
        return NAMED[name]
    if WORDS.fullmatch(written):
        return written
    if single := SINGLE.fullmatch(written):
        text = single[1].replace("''", "'")
    elif double := DOUBLE.fullmatch(written):
        text = re.sub(r"\\.", lambda match: ESCAPED[match[0]], double[1])
    else:
        raise UserError(
            f"{key} is written {shown(written)}; write a number, a word, text in quotes, or a list such as [0.1, 0.2]"
        )
    if "${" in text:
        raise UserError(f"{key} is {shown(text)}; ${{...}} is not replaced here; write the value itself")
    return text


def build(kind: str, table: Mapping[str, type[T]], spec: str) -> T:
    """Build the entry of `table` that `spec` names, with the spec's options over the defaults."""
    name, options = parse(spec)
    known(kind, table, name)
    return built(table[name], name, options)


def built(cls: type[T], name: str, values: Mapping[str, Any]) -> T:
    """Return an entry of a table, of this name, with options."""
    entry: Any = cls
    if not values:
        # A copy, since options that are lists could be changed.
        return cast(T, copy.deepcopy(plain(entry, name)))
    return cast(T, typed(entry(), values, f"{name}."))


@functools.cache
def plain(cls: Any, name: str) -> Any:
    """Return an entry of a table without options; checked once, since most specs have none."""
    return typed(cls(), {}, f"{name}.")


def known(kind: str, table: Mapping[str, object], name: str) -> None:
    """Refuse a name that is not in the table."""
    if name not in table:
        raise UserError(f"unknown {kind} {shown(name)}; {nearest(name, table)}")
