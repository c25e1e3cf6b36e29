"""Runs whose entropy collapsed or exploded: the one definition of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame

# Conventions, not measurements: no source names a bound. In the demo the entropy of GRPO ends at two fifths of its
# start, and that of the bonus of 0.1, whose answers are all wrong, at twelve times its start.
COLLAPSED_BELOW = 0.1  # the entropy at the last step as a share of that at the first
EXPLODED_ABOVE = 3.0


def collapsed_and_exploded(done: DataFrame) -> tuple[float, float] | tuple[None, None]:
    """Return the shares of the seeds of a row that collapsed and that exploded; None if no seed has both entropies.

    A cell that stop.entropy_below has ended has collapsed, too. A seed without an entropy at an end is not counted.
    """
    first, last = done["entropy_first"].to_numpy(), done["entropy_last"].to_numpy()
    stopped = done["collapsed"].notna().to_numpy()
    known = (np.isfinite(first) & np.isfinite(last) & (first > 0)) | stopped
    if not known.any():
        return None, None
    collapsed = stopped | (last < COLLAPSED_BELOW * first)
    exploded = ~stopped & (last > EXPLODED_ABOVE * first)
    return float(collapsed[known].mean()), float(exploded[known].mean())
