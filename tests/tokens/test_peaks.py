"""The shares of tokens that are likelier than expected (peaks) or not (valleys), by the sign of the advantage."""

from __future__ import annotations

import dataclasses

import loops
import pytest
from ragged import case

import baselines
from harness.methods.composition import Method
from harness.tokens import metrics

BINS = ["peaks/positive", "peaks/negative", "valleys/positive", "valleys/negative"]


def test_shares_of_peaks_and_valleys() -> None:
    c = case(2, groups=6, size=4)
    signal = Method.of("clip_v", baselines.table()).signal(c.old, c.batch, [c.batch])
    counts = dict.fromkeys(BINS, 0)
    advantages = loops.group_advantages(c)
    for t, a in enumerate(advantages):
        p = loops.softmax(c.old_logits_TV[t].tolist())
        side = "peaks" if p[int(c.targets_T[t])] >= sum(x * x for x in p) else "valleys"
        if a:
            counts[f"{side}/{'positive' if a > 0 else 'negative'}"] += 1
    record = metrics.of_signal(signal, c.batch)
    assert all(counts.values())
    assert [record[name] for name in BINS] == pytest.approx([counts[name] / len(advantages) for name in BINS])
    assert sum(record[name] for name in BINS) == pytest.approx(1 - record["advantages/zero"])


def test_without_the_sums_nothing_is_logged() -> None:
    c = case(2)
    old = dataclasses.replace(c.old, sum_p2=None, sum_p2_logp=None)
    signal = Method.of("grpo", baselines.table()).signal(old, c.batch, [c.batch])
    assert not metrics.of_signal(signal, c.batch).keys() & {*BINS}
