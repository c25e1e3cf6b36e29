"""Addresses of MLflow stores as they are shown: without a user, a password or a token."""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_plus

HIDDEN = "***"
HOST = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
SCHEME = re.compile(r"[A-Za-z][\w+-]*://")
# Without any part that may be secret: a folder or a name, a file, or a server with a path.
PLAIN = re.compile(rf"[^:@?#=&;%\s]+|(?:sqlite|file)(?:\+\w+)?:///[^?#]*|{SCHEME.pattern}{HOST}(?:/[^@?#\\;=&%\s]*)?")
# The user ends at the first `@`, and no `@` follows: else a part of a password might be taken for the host.
SERVER = re.compile(rf"(?P<scheme>{SCHEME.pattern})(?P<user>[^@/?#\\]*@)?(?P<host>{HOST})(?:[/?#][^@\\]*)?")
FILE = re.compile(r"(?:sqlite|file):///[^?#]*")
BETWEEN_PARTS = re.compile(r"[/:@?#&;=\\{}\[\]\s]+")
DISTINCT = 5  # characters from which a part is unlikely to occur within another word
IN_TEXT = re.compile(r"\b[A-Za-z][\w+-]*:/\S+")


def may_be_written(uri: str) -> bool:
    """Return whether an address has no part that could contain a user, a password or a token."""
    return PLAIN.fullmatch(uri) is not None


def visible_address(uri: str) -> str:
    """Return an address with everything hidden that may be secret."""
    if may_be_written(uri):
        return uri
    if file := FILE.match(uri):
        return file[0] + HIDDEN
    server = SERVER.fullmatch(uri)
    if server is None:
        scheme = SCHEME.match(uri)
        return f"{scheme[0] if scheme else ''}{HIDDEN}"
    user = f"{HIDDEN}@" if server["user"] else ""
    rest = "" if uri.rstrip("/").endswith(server["host"]) else f"/{HIDDEN}"
    return f"{server['scheme']}{user}{server['host']}{rest}"


def without_address(text: str, uri: str) -> str:
    """Hide an address, and each of its parts that visible_address hides, in the text of a library."""
    visible = visible_address(uri)
    parts: set[str] = set()
    for written in (uri, unquote(uri), unquote_plus(uri)):
        parts.update(BETWEEN_PARTS.split(written))
    text = text.replace(uri, visible)
    # The longest first: a part that is contained in another one would break it up, and its rest would be shown.
    for part in sorted(parts - {*BETWEEN_PARTS.split(visible), ""}, key=len, reverse=True):
        # A short one only as a whole word: a user named db must not hide the middles of other words.
        pattern = re.escape(part) if len(part) >= DISTINCT else rf"(?<!\w){re.escape(part)}(?!\w)"
        text = re.sub(pattern, HIDDEN, text)
    return text


def without_secrets(text: str) -> str:
    """Hide the parts of all addresses in a text that may be secret."""
    return IN_TEXT.sub(hidden_in_text, text)


def hidden_in_text(match: re.Match[str]) -> str:
    """Return an address as a message may show it, followed by the punctuation of the sentence."""
    address = match[0].rstrip(".,;:)]}'\"`")
    return visible_address(address) + match[0][len(address) :]
