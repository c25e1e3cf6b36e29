"""Seals on records: a checksum at the end of a text, by which an accidental change is detected.

A line or file of JSON ends with the key `sum`, a YAML file with a comment. A seal protects against accidents, not
against a person who computes it again.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from harness.base.errors import Damaged

DIGITS = 16  # of the SHA-256: 64 bits let one of 2 * 10^19 accidents pass
JSON_END = re.compile(rb', "sum": "([0-9a-f]{%d})"\}' % DIGITS)
JSON_LENGTH = len(', "sum": ""}') + DIGITS
YAML_END = re.compile(rb"# sum: ([0-9a-f]{%d})\n" % DIGITS)
YAML_LENGTH = len("# sum: \n") + DIGITS


def sum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def close_json(text: str) -> str:
    """Return the JSON text of a mapping, which must not be empty, with its sum as the last key."""
    # Before the closing brace; the sum is that of the text with its brace.
    return f'{text[:-1]}, "sum": "{sum_of(text.encode())}"}}'


def has_sum(content: bytes) -> bool:
    """Return whether JSON text ends with a sum, which need not be the right one."""
    return JSON_END.fullmatch(content[-JSON_LENGTH:]) is not None


def open_json(content: bytes, path: Path, name: str = "it") -> bytes:
    """Return JSON text without its sum; raise Damaged if they disagree. `name` is the part in the message."""
    rest, end = content[:-JSON_LENGTH] + b"}", JSON_END.fullmatch(content[-JSON_LENGTH:])
    return without_sum(rest, end, path, name)


def close_yaml(text: str) -> str:
    """Return a YAML text with its sum as a comment in its last line."""
    return f"{text}# sum: {sum_of(text.encode())}\n"


def open_yaml(content: bytes, path: Path) -> bytes:
    """Return YAML text without its sum; raise Damaged if they disagree."""
    return without_sum(content[:-YAML_LENGTH], YAML_END.fullmatch(content[-YAML_LENGTH:]), path, "it")


def without_sum(rest: bytes, end: re.Match[bytes] | None, path: Path, name: str) -> bytes:
    if end is None:
        raise Damaged(path, f"{name} does not end with a sum")
    if sum_of(rest) != end[1].decode():
        raise Damaged(path, f"{name} does not fit its sum")
    return rest
