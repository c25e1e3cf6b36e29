"""Seeds derived from the purpose of the random numbers, so that they do not depend on earlier draws."""

from __future__ import annotations

import hashlib


def derive(*parts: object) -> int:
    """Return a seed of 63 bits for a purpose, given by names and numbers."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # so that it fits into a signed integer of 64 bits
