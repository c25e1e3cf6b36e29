"""Seeds and orders derived from the purpose of random numbers, so that they do not depend on earlier draws."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


def derive(*parts: object) -> int:
    """Return a seed of 63 bits for a purpose, given by names and numbers."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # so that it fits into a signed integer of 64 bits


def in_passes(places: Iterable[int], size: int, *purpose: object) -> list[int]:
    """Return the numbers at some places of an endless row of passes over 0 ... size - 1, each in a random order."""
    orders = {}  # by the number of the pass
    numbers = []
    for place in places:
        number, place_in_pass = divmod(place, size)
        if number not in orders:
            orders[number] = np.random.default_rng(derive(*purpose, number)).permutation(size).tolist()
        numbers.append(orders[number][place_in_pass])
    return numbers
