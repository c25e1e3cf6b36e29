"""Shares of a count, computed exactly."""

from __future__ import annotations

from fractions import Fraction

from harness.base.units import exact


def share_of(share: float, count: float) -> Fraction:
    """Return the exact product of a share, as its decimals are written, and a whole count."""
    # As floats, 0.07 times 100 is 7.000000000000001, which ceil rounds to 8.
    return exact(share) * int(count)
