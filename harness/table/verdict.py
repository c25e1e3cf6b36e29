"""The verdict on a method against the baseline: one rule for tables, page, studies and documents.

A difference is significant if its p-value is below 5 % after Holm's correction for the methods of the table that are
compared with the baseline, for each score on its own. A method *wins* if it gains significantly in the headline score
and does not lose significantly in Avg@K; with such a loss it *trades*; it *loses* if it loses significantly in the
headline score. All others have no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.statistics import Floats, crossed_p_value, holm
from harness.table.frames import BASE_MODEL

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


def p_values(differences: Mapping[str, Floats]) -> dict[str, float]:
    """Return the p-value of each method whose difference from the baseline, by seed and problem, has one."""
    by_method = {}
    for method, x_SJ in differences.items():
        p = crossed_p_value(x_SJ)
        if p is not None:
            by_method[method] = p
    return by_method


def adjusted(p_by_method: Mapping[str, float]) -> dict[str, float]:
    """Return p-values after Holm's correction; the base model, which all methods begin from, counts as no test."""
    tested = {method: p for method, p in p_by_method.items() if method != BASE_MODEL}
    return dict(zip(tested, holm(list(tested.values())), strict=True))
