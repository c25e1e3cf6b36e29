"""Every random number comes from a seed that is derived from what it is for, never from what ran before."""

from __future__ import annotations

import hashlib


def derive(*parts: object) -> int:
    """A seed of 63 bits from the names and numbers that say what it is for."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
