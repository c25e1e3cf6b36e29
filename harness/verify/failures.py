"""The bound on verdicts that fail, beyond which scores say more about the verifier than about the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from harness.base.errors import CellFailure
from harness.base.task import Verdict

FAILURES = (Verdict.TIMEOUT, Verdict.ERROR)
FEWEST = 5  # failures; fewer say nothing about their share


class TooManyFailures(CellFailure):
    """The verifier fails so often that scores would say more about it than about the model."""


def check_failures(verdicts: Iterable[str], threshold: float) -> None:
    """Raises TooManyFailures where timeouts and errors are more than this share of the verdicts."""
    counts = Counter(verdicts)
    total, failed = counts.total(), sum(counts[verdict] for verdict in FAILURES)
    if failed >= FEWEST and failed > threshold * total:
        raise TooManyFailures(
            f"{failed} of {total} answers ({failed / total:.1%}) could not be verified ({counts[Verdict.TIMEOUT]} "
            f"timeouts, {counts[Verdict.ERROR]} errors); allowed are {threshold:.1%}"
        )
