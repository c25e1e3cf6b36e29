"""Training without a signal: each group of responses had one reward, so no response was better than another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

SHARE = "reward/groups_without_signal"
NO_SIGNAL = "no step had a signal, so nothing was learned"
HALF = 0.5  # share of responses from which on a sign is named

# Remedies, which `diagnose` names as well.
UNREADABLE = "read some responses; teach the format before training, or stop while answers can still be read"
TRUNCATED = "raise the limit of tokens, or leave truncated responses out of the loss (overlong)"
SATURATED = "train on harder problems (train.filter), or stop here"
CONSTANT = (
    "check by hand how answers are read and judged; if they are judged correctly, the problems are too hard or too "
    "easy for this model"
)
FEW_SIGNALS = "draw groups until enough of them have a signal (train.resample), or filter problems by their pass rate"


def why_no_signal(lines: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the likely cause and its remedy if no training step in some lines of metrics.jsonl had a signal.

    None if one had, or if there is no training step among them.
    """
    steps = [line["metrics"] for line in lines if SHARE in line["metrics"]]
    if not steps or any(metrics[SHARE] < 1 for metrics in steps):
        return None
    unparsed, truncated, right = (
        fmean(metrics.get(key, 0.0) for metrics in steps)
        for key in ("verdicts/unparsed", "responses/truncated", "reward/mean")
    )
    facts, remedies = [], []
    if unparsed >= HALF:
        facts.append(f"{portion(unparsed)} answers unparsed")
        remedies.append(UNREADABLE)
    if truncated >= HALF:
        facts.append(f"{portion(truncated)} responses cut off by rollout.max_new_tokens")
        remedies.append(TRUNCATED)
    if right == 1:
        facts.append("all answers right")
        remedies.append(SATURATED)
    elif right > 0:
        facts.append("in each group all answers were right, or all wrong")
        remedies.append(FEW_SIGNALS)
    elif not facts:
        facts.append("all answers wrong")
        remedies.append(CONSTANT)
    return f"{', '.join(facts)}; {'; '.join(remedies)}"


def portion(share: float) -> str:
    return "all" if share == 1 else f"{share:.0%} of the"
