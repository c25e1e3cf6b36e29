"""Specs such as `clip_b(share=0.02, mode=paper)` resolved against a table of dataclasses; imports no torch."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import yaml

from harness.base.errors import UserError, nearest, shown
from harness.base.schema import typed

T = TypeVar("T")
QUOTED_OR_ONE = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|.""", re.DOTALL)
SPEC = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)


def split(spec: str, separator: str) -> list[str]:
    """Split at a separator, but not inside brackets or quotes."""
    parts, depth = [""], 0
    for piece in QUOTED_OR_ONE.findall(spec):
        depth += (piece in "([") - (piece in ")]")
        if piece == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """`name(key=value, ...)` -> name and options."""
    match = SPEC.fullmatch(spec)
    if match is None:
        raise UserError(f"{shown(spec)} is no specification; write name or name(key=value, ...)")
    name, inside = match.groups()
    options = {}
    for part in split(inside or "", ","):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"{part.strip()!r} in {spec!r} is no option; write key=value")
        options[key.strip()] = yaml.safe_load(value)
    return name, options


def build(
    kind: str, table: Mapping[str, type[T]], spec: str, shared: Mapping[str, Mapping[str, Any]] | None = None
) -> T:
    """The entry of `table` that `spec` names, with the options of the spec over the shared ones over its defaults."""
    name, options = parse(spec)
    known(kind, table, name)
    cls: Any = table[name]
    given = {**(shared or {}).get(name, {}), **options}
    return cast(T, typed(cls(), given, f"{name}.") if given else copy.deepcopy(plain(cls, name)))


@functools.cache
def plain(cls: Any, name: str) -> Any:
    """Returns what a table's entry is without options, checked once for the many that ask for none."""
    return typed(cls(), {}, f"{name}.")


def known(kind: str, table: Mapping[str, object], name: str) -> None:
    """Refuses a name that is not in the table."""
    if name not in table:
        raise UserError(f"unknown {kind} {shown(name)}; {nearest(name, table)}")
