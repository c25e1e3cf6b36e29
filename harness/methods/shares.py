"""Shares of a count, computed exactly."""

from __future__ import annotations

from fractions import Fraction


def share_of(share: float, count: float) -> Fraction:
    """Return the exact product of a share, as its decimals are written, and a whole count."""
    # The float 0.07 is a little more than 7 / 100: its product with 100 is 7.000000000000001, which ceil rounds to 8.
    # repr is the shortest decimal with the same float, which is the decimal that the user wrote.
    return Fraction(repr(float(share))) * int(count)
