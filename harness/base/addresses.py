"""Addresses of MLflow stores as they are shown: without a user, a password or a token."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

HIDDEN = "***"
SCHEME = r"[A-Za-z][\w+-]*://"
HOST = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
# Without any part that may be secret: a folder or a name, a file, or a server with a path.
PLAIN = re.compile(rf"[^:@?#=&;%\s]+|(?:sqlite|file)(?:\+\w+)?:///[^?#]*|{SCHEME}{HOST}(?:/[^@?#\\;=&%\s]*)?")
# The user ends at the first `@`, and no `@` follows: else a part of a password might be taken for the host.
SERVER = re.compile(rf"({SCHEME})(?:[^@/?#\\]*@)?({HOST})(?:[/?#][^@\\]*)?")
IN_TEXT = re.compile(r"\b[A-Za-z][\w+-]*:/\S+")


def may_be_written(uri: str) -> bool:
    """Return whether an address has no part that could contain a user, a password or a token."""
    return PLAIN.fullmatch(uri) is not None


def visible_address(uri: str) -> str:
    """Return an address; only its scheme and its host if another part may be secret."""
    if may_be_written(uri):
        return uri
    if server := SERVER.fullmatch(uri):
        return f"{server[1]}{server[2]}/{HIDDEN}"
    scheme = re.match(SCHEME, uri)
    return f"{scheme[0] if scheme else ''}{HIDDEN}"


def without_address(text: str, uri: str) -> str:
    """Return the text of a library, unless it quotes a part of an address that may be secret."""
    hidden = words_of(uri) - words_of(visible_address(uri))
    return text if hidden.isdisjoint(words_of(text)) else "the message is not shown, since it quotes the address"


def words_of(text: str) -> set[str]:
    """Return the words of a text as it is written, and with its escapes resolved."""
    return set(re.findall(r"\w+", f"{text} {unquote_plus(text)}"))


def without_secrets(text: str) -> str:
    """Hide the parts of all addresses in a text that may be secret."""
    return IN_TEXT.sub(hidden_in_text, text)


def hidden_in_text(match: re.Match[str]) -> str:
    """Return an address as a message may show it, followed by the punctuation of the sentence."""
    address = match[0].rstrip(".,;:)]}'\"`")
    return visible_address(address) + match[0][len(address) :]
