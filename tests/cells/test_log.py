"""Training without a signal: when it is named, and with which cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.cells import lease
from harness.cells.log import (
    CONSTANT,
    FEW_SIGNALS,
    NEVER_ENDED,
    SATURATED,
    SHARE,
    TRUNCATED,
    UNREADABLE,
    Ending,
    MetricsLog,
    last_step,
    silent_end,
    why_no_signal,
)
from harness.cells.state import Progress, State
from harness.config import Config
from harness.config.sections import Stop


def steps(*metrics: dict[str, float]) -> list[dict[str, Any]]:
    """Return lines of metrics.jsonl; step 0, which trains nothing, comes first."""
    given = [{"eval/countdown/avg": 0.0}, *({SHARE: 1.0, "reward/mean": 0.0, **of_step} for of_step in metrics)]
    return [{"step": number, "metrics": of_step} for number, of_step in enumerate(given)]


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
        ([{"reward/mean": 0.25}], f"equal rewards in each group; {FEW_SIGNALS}"),
        ([{"reward/mean": -5.0}], f"equal rewards in each group; {FEW_SIGNALS}"),
    ],
)
def test_why_no_signal(metrics: list[dict[str, float]], why: str | None) -> None:
    assert why_no_signal(steps(*metrics)) == why


def test_why_no_signal_counts_rewards() -> None:
    lines = steps(*[{"verdicts/unparsed": 1.0, "responses/truncated": 1.0}] * 12)
    assert why_no_signal(lines, responses=16) == (
        "all 192 training rewards were 0, all answers unparsed, no response ended within rollout.max_new_tokens; "
        f"{UNREADABLE}; {NEVER_ENDED}"
    )
    assert why_no_signal(steps({"reward/mean": 1.0}), responses=16) == f"all answers right; {SATURATED}"


@pytest.mark.parametrize(
    ("shares", "rule", "end"),
    [
        ([1, 1, 1, 1], {}, None),
        ([1, 1, 1, 1], {"without_signal": 3}, 3),
        ([1, 1, 0.5, 1, 1], {"without_signal": 3}, None),
        ([1, 0.9, 1, 1, 0.9], {"without_signal": 2}, 4),
        ([0.9, 1], {"without_signal": 1}, 2),
        ([1, 1, 1], {"without_signal": 3, "entropy_below": 0.5}, 2),
        ([1, 1, 1], {"without_signal": 2, "tokens": 30}, 2),
        ([1, 1, 1], {"without_signal": 3, "tokens": 20}, 2),
    ],
)
def test_ending_without_a_signal(shares: list[float], rule: dict[str, Any], end: int | None) -> None:
    """The first rule that holds counts; a resumed count goes on from the lines of the log."""
    made = [
        {SHARE: share, "entropy/mean": 1.0 / number**2, "tokens/generated_total": 10.0 * number}
        for number, share in enumerate(shares, 1)
    ]
    lines, stop = steps(*made), Stop(**rule)
    assert Ending.of(lines, stop).step == end
    assert last_step(lines, Config(stop=stop)) == (Config().train.steps if end is None else end)
    for interrupted in range(len(lines)):
        resumed = Ending.of(lines[:interrupted], stop)
        for line in lines[interrupted:]:
            resumed.add(line)
        assert resumed == Ending.of(lines, stop)


def test_silent_end() -> None:
    stop = Stop(without_signal=2)
    right = {"reward/mean": 1.0}
    sentence = f"training ended at step 3, since its last 2 steps had no signal: all answers right; {SATURATED}"
    assert silent_end(steps({SHARE: 0.5}, right, right), stop) == sentence
    assert silent_end(steps({SHARE: 0.5}, right, right), Stop()) is None
    assert silent_end(steps({SHARE: 0.5}, right, {SHARE: 0.5}, right), stop) is None
    assert silent_end(steps(right, right), stop) is None, "nothing was learned, which is said in other words"


def test_rule_of_stop() -> None:
    stop = Stop(entropy_below=0.02, tokens=1_000_000, without_signal=5)
    assert stop.rule == (
        "a cell ends early after a step with an entropy below 0.02, or after 5 steps in a row without a signal, or "
        "with 1,000,000 sampled tokens (stop)"
    )
    assert (Stop().rule, Stop().plain()) == ("", {"entropy_below": None})
    assert Stop(without_signal=1).plain() == {"entropy_below": None, "without_signal": 1}


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
