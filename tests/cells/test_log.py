"""Training without a signal: when it is named, and with which cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.cells import lease
from harness.cells.log import CONSTANT, FEW_SIGNALS, SATURATED, SHARE, TRUNCATED, UNREADABLE, MetricsLog, why_no_signal
from harness.cells.state import Progress, State


def steps(*metrics: dict[str, float]) -> list[dict[str, Any]]:
    """Return lines of metrics.jsonl; step 0, which trains nothing, comes first."""
    lines: list[dict[str, Any]] = [{"step": 0, "metrics": {"eval/countdown/avg": 0.0}}]
    for number, of_step in enumerate(metrics, 1):
        lines.append({"step": number, "metrics": {SHARE: 1.0, "reward/mean": 0.0, **of_step}})
    return lines


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ([], None),
        ([{}, {SHARE: 0.99}], None),
        ([{}, {"verdicts/unparsed": 0.98}], f"all answers wrong; {CONSTANT}"),
        ([{"verdicts/unparsed": 1.0}] * 2, f"all answers unparsed; {UNREADABLE}"),
        ([{}, {"verdicts/unparsed": 1.0}], f"50% of the answers unparsed; {UNREADABLE}"),
        (
            [{"verdicts/unparsed": 1.0, "responses/truncated": 0.75}],
            f"all answers unparsed, 75% of the responses cut off by rollout.max_new_tokens; {UNREADABLE}; {TRUNCATED}",
        ),
        ([{"reward/mean": 1.0}] * 2, f"all answers right; {SATURATED}"),
        ([{"reward/mean": 0.25}], f"in each group all answers were right, or all wrong; {FEW_SIGNALS}"),
    ],
)
def test_why_no_signal(metrics: list[dict[str, float]], why: str | None) -> None:
    assert why_no_signal(steps(*metrics)) == why


def test_progress_without_a_signal(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    with lease.hold(tmp_path):
        State("running").write(tmp_path)
        for line in steps(*[{"verdicts/unparsed": 1.0}] * 5):
            log.append(line["step"], 0.0, line["metrics"])
        why = f"no signal in the last 5 steps: all answers unparsed; {UNREADABLE}"
        assert Progress.read(tmp_path, recent=5).reason == why
        assert Progress.read(tmp_path, recent=4).reason is None
        log.append(6, 0.0, {SHARE: 0.5})
        assert Progress.read(tmp_path, recent=5).reason is None
