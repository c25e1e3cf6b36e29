"""Runs whose entropy collapsed or exploded: the one definition of both, for tables and `entrobench diagnose`."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

COLLAPSED, EXPLODED = "collapsed", "exploded"
# Conventions, not measurements: no source names a bound. In the demo the entropy of GRPO ends at a third of its start,
# and that of the bonus of 0.1, whose answers are all wrong, at twelve times its start.
COLLAPSED_BELOW = 0.1  # the entropy at the last step as a share of that at the first
EXPLODED_ABOVE = 3.0
ZERO = 1e-6  # nats; less is the rounding of a policy that always samples the same token


def ending(first: float, last: float) -> str | None:
    """Return how a run ended by its entropies at the first and the last step: COLLAPSED, EXPLODED, or None."""
    if first <= ZERO or last < COLLAPSED_BELOW * first:
        return COLLAPSED
    return EXPLODED if last > EXPLODED_ABOVE * first else None


def collapsed_and_exploded(done: DataFrame) -> tuple[float, float] | tuple[None, None]:
    """Return the shares of the seeds of a row that collapsed and that exploded; None if no seed has both entropies.

    A cell that stop.entropy_below has ended has collapsed, too. A seed without an entropy at an end is not counted.
    """
    endings: list[str | None] = []
    for first, last, is_stopped in zip(
        done["entropy_first"], done["entropy_last"], done["collapsed"].notna(), strict=True
    ):
        if is_stopped:
            endings.append(COLLAPSED)
        elif isfinite(first) and isfinite(last):
            endings.append(ending(first, last))
    if not endings:
        return None, None
    return endings.count(COLLAPSED) / len(endings), endings.count(EXPLODED) / len(endings)
