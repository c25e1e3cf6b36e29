"""Training without a signal: when it is named, and with which cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.cells import lease, no_signal
from harness.cells.log import MetricsLog
from harness.cells.no_signal import why_no_signal
from harness.cells.state import Progress, State


def steps(*metrics: dict[str, float]) -> list[dict[str, Any]]:
    """Return lines of metrics.jsonl; step 0, which trains nothing, comes first."""
    lines: list[dict[str, Any]] = [{"step": 0, "metrics": {"eval/countdown/avg": 0.0}}]
    for number, of_step in enumerate(metrics, 1):
        lines.append({"step": number, "metrics": {no_signal.SHARE: 1.0, "reward/mean": 0.0, **of_step}})
    return lines


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ([], None),
        ([{}, {no_signal.SHARE: 0.99}], None),
        ([{}, {"verdicts/unparsed": 0.98}], f"all answers wrong; {no_signal.CONSTANT}"),
        ([{"verdicts/unparsed": 1.0}] * 2, f"all answers unparsed; {no_signal.UNREADABLE}"),
        ([{}, {"verdicts/unparsed": 1.0}], f"50% of the answers unparsed; {no_signal.UNREADABLE}"),
        (
            [{"verdicts/unparsed": 1.0, "responses/truncated": 0.75}],
            "all answers unparsed, 75% of the responses cut off by rollout.max_new_tokens; "
            f"{no_signal.UNREADABLE}; {no_signal.TRUNCATED}",
        ),
        ([{"reward/mean": 1.0}] * 2, f"all answers right; {no_signal.SATURATED}"),
        ([{"reward/mean": 0.25}], f"in each group all answers were right, or all wrong; {no_signal.FEW_SIGNALS}"),
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
        why = f"no signal in the last 5 steps: all answers unparsed; {no_signal.UNREADABLE}"
        assert Progress.read(tmp_path, recent=5).reason == why
        assert Progress.read(tmp_path, recent=4).reason is None
        log.append(6, 0.0, {no_signal.SHARE: 0.5})
        assert Progress.read(tmp_path, recent=5).reason is None
