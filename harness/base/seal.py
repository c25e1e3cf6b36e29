"""Seals on records: a checksum at the end of a text, by which an accidental change is detected.

A line or file of JSON ends with the key `sum`, a YAML file with a comment, a pack with a line of text. A seal
protects against accidents, not against a person who computes it again.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from harness.base.errors import Damaged

DIGITS = 16  # of the SHA-256: 64 bits let one of 2 * 10^19 accidents pass
JSON_END = re.compile(rb', "sum": "([0-9a-f]{%d})"\}' % DIGITS)
JSON_LENGTH = len(', "sum": ""}') + DIGITS
FILE_MARK = b"entrobench pack sha256 "
FILE_LENGTH = len(FILE_MARK) + 64
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


def close_file(path: Path) -> None:
    """Write the SHA-256 of a file over its last bytes, which must be there for it."""
    digest = digest_before_end(path)
    with open(path, "r+b") as file:
        file.seek(-FILE_LENGTH, os.SEEK_END)
        file.write(FILE_MARK + digest.encode())
        file.flush()
        os.fsync(file.fileno())


def check_file(path: Path) -> None:
    """Refuse a file that does not end with its sum."""
    with open(path, "rb") as file:
        file.seek(max(path.stat().st_size - FILE_LENGTH, 0))
        end = file.read()
    if not end.startswith(FILE_MARK):
        raise Damaged(path, "it does not end with the sum of its bytes: it was cut off or edited, or is another zip")
    if end[len(FILE_MARK) :].decode(errors="replace") != digest_before_end(path):
        raise Damaged(path, "it was edited since `entrobench pack` wrote it: its bytes do not fit its sum")


def digest_before_end(path: Path) -> str:
    """Return the SHA-256 of a file without the bytes of its own sum."""
    digest = hashlib.sha256()
    left = path.stat().st_size - FILE_LENGTH
    with open(path, "rb") as file:
        while left > 0:
            block = file.read(min(left, 1 << 20))
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
