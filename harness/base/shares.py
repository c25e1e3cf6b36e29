"""Shares of a count, computed exactly."""

from __future__ import annotations

from fractions import Fraction


def share_of(share: float, count: float) -> Fraction:
    """Return the exact product of a share, as it is written in decimals, and a whole count."""
    # 0.07 means 7 / 100, and the nearest float is a little more: its product with 100 is 7.000000000000001, of which
    # ceil makes 8. repr is the shortest decimal that stands for the float, which is the one that was written.
    return Fraction(repr(float(share))) * int(count)
