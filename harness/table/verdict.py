"""The rules for tables, page, studies and documents: the verdict on a method, and when an entropy has collapsed.

A difference is significant if its p-value is below 5 % after Holm's correction for the methods of the table that are
compared with the baseline, for each score on its own. A method *wins* if it gains significantly in the headline score
and does not lose significantly in Avg@K; with such a loss it *trades*; it *loses* if it loses significantly in the
headline score. All others have no verdict.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

    from harness.table.scores import TableScores

WINS, TRADES, LOSES = "wins", "trades", "loses"
SIGNIFICANT = 0.05  # the chance, over all methods of a table, of any difference that is called significant by mistake


def verdict(headline: int, average: int) -> str:
    """Return the verdict from the significance of both scores; empty if there is none."""
    if headline > 0:
        return TRADES if average < 0 else WINS
    return LOSES if headline < 0 else ""


def significance(difference: float, p_holm: float | None) -> int:
    """Return 1 for a significant gain, -1 for a significant loss, 0 for neither."""
    if p_holm is None or p_holm >= SIGNIFICANT:
        return 0
    return 1 if difference > 0 else -1


def verdicts(headline: TableScores, average: TableScores) -> dict[str, str]:
    """Return the verdict on each method that is compared with the baseline."""
    return {method: verdict(sign(headline, method), sign(average, method)) for method in headline.differences}


def sign(scores: TableScores, method: str) -> int:
    """Return the significance of a method's difference from the baseline."""
    return significance(scores.differences[method].mean(), scores.p_holm.get(method))


# Entropies that collapsed or exploded

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
