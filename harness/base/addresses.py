"""Addresses of MLflow stores without their secrets: each part that is not on an allow-list is hidden."""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_plus

HIDDEN = "***"
SCHEMES = ("http", "https", "file", "sqlite", "postgresql", "mysql", "mssql", "databricks", "databricks-uc", "uc")
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9-]*)((?:\+[A-Za-z0-9_]+)?):")  # such as postgresql+psycopg:, with a driver
HOST = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
FOLDER = re.compile(r"[^:@?#=&;%\s]+")  # a store of files, without a scheme
LOCAL = ("sqlite", "file")  # their paths are on this machine
BETWEEN_PARTS = re.compile(r"[/:@?#&;=\\{}\s]+")
DISTINCT = 5  # characters from which a part is unlikely to occur within another word
QUOTED = re.compile(rf"\b(?:(?:{'|'.join(SCHEMES)})(?:\+\w+)?:|[A-Za-z][\w+.-]*://)\S+")  # an address in a sentence
DIVIDING = "/?#\\"  # characters that end the host for some parsers of addresses, but not for others


def visible_address(uri: str) -> str:
    """Return an address with everything hidden except its scheme, host, port, and the path of a local file."""
    if uri in SCHEMES or FOLDER.fullmatch(uri):
        return uri
    match = SCHEME.match(uri)
    if match is None or match[1].lower() not in SCHEMES:
        return HIDDEN
    scheme, rest = match[0], uri[match.end() :]
    if not rest.startswith("//"):
        return f"{scheme}{HIDDEN}"
    local = match[1].lower() in LOCAL
    if local and rest.startswith("///"):
        path, rest = before_any(rest, "?#")
        return f"{scheme}{path}{HIDDEN if rest else ''}"
    authority, rest = before_any(rest[2:], DIVIDING)
    if "@" in rest:  # a password may contain characters that end the host, so the host is not certain
        return f"{scheme}//{HIDDEN}"
    user, _, server = authority.rpartition("@")
    if "@" in user or local or not HOST.fullmatch(server):
        return f"{scheme}//{HIDDEN}"
    hidden_user = f"{HIDDEN}@" if user else ""
    hidden_rest = f"/{HIDDEN}" if rest.strip("/") else ""
    return f"{scheme}//{hidden_user}{server}{hidden_rest}"


def before_any(text: str, signs: str) -> tuple[str, str]:
    """Split a text before the first of some characters."""
    for place, sign in enumerate(text):
        if sign in signs:
            return text[:place], text[place:]
    return text, ""


def may_be_written(uri: str) -> bool:
    """Return whether an address has no part that could contain a user, a password or a token."""
    match = SCHEME.match(uri)
    if match is None or match[1].lower() not in SCHEMES:
        return FOLDER.fullmatch(uri) is not None
    rest = uri[match.end() :]
    if match[1].lower() in LOCAL:
        return rest.startswith("///") and not set("?#") & set(rest)
    if not rest.startswith("//"):
        return False
    server, path = before_any(rest[2:], "/")
    return HOST.fullmatch(server) is not None and not set("@?#\\;=&%") & set(path)


def without_address(text: str, uri: str) -> str:
    """Hide an address, and each of its parts that visible_address hides, in the text of a library."""
    if not uri:
        return text
    visible = visible_address(uri)
    text = text.replace(uri, visible)
    parts: set[str] = set()
    for written in (uri, unquote(uri), unquote_plus(uri)):
        parts.update(BETWEEN_PARTS.split(written))
    secret_parts = parts - {*BETWEEN_PARTS.split(visible), ""}
    # The longest first: a part that is contained in another one would break it up, and its rest would be shown.
    for part in sorted(secret_parts, key=len, reverse=True):
        pattern = re.escape(part)
        if len(part) < DISTINCT:  # only as a whole word: a user named db must not hide the middles of other words
            pattern = rf"(?<!\w){pattern}(?!\w)"
        text = re.sub(pattern, HIDDEN, text)
    return text


def without_secrets(text: str) -> str:
    """Hide the secret parts of all addresses in a text; an address of a host and a path has none."""
    return QUOTED.sub(hidden_in_text, text)


def hidden_in_text(match: re.Match[str]) -> str:
    """Return an address as a message may show it, followed by the punctuation of the sentence."""
    address = match[0].rstrip(".,;:)]}'\"`")
    following = match[0][len(address) :]
    server, _ = before_any(address.partition("//")[2], "/")
    plain = not set("@?#") & set(address) and (not server or HOST.fullmatch(server))
    return (address if plain else visible_address(address)) + following
