"""Metrics of a signal against loops over tokens: gradient mass, and the shares of peaks and valleys."""

from __future__ import annotations

import dataclasses
import random

import loops
import pytest
import torch
from ragged import case
from registered import method

from harness.methods.batch import Rollout, TokenBatch, TokenStats
from harness.methods.composition import Signal
from harness.tokens import metrics


def test_gradient_mass_is_split_by_sign_and_by_the_pass_rate_of_the_problem() -> None:
    rng = random.Random(1)
    groups = [[Rollout([1], [3] * (n := rng.randint(1, 9)), [-1.0] * n, True) for _ in range(4)] for _ in range(5)]
    right = [float(i < number) for number in range(5) for i in range(4)]  # none of the first group, all of the last
    batch = TokenBatch.of(groups, right, 9, "cpu")
    tokens = [(number, row) for number, group in enumerate(groups) for row in group for _ in row.response]
    advantages = [rng.choice([-1.5, 0.0, 0.3, 2.0]) for _ in tokens]
    weights = [rng.choice([0.0, 0.5, 1.0]) for _ in tokens]
    a_T, w_T = torch.tensor(advantages, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
    signal = Signal(TokenStats(logp=a_T), a_T, w_T, {}, {}, a_T, a_T, None)

    actual = metrics.gradient_mass(signal, batch)

    expected = {"mass/positive": 0.0, "mass/negative": 0.0, "mass/positive_hard": 0.0, "mass/negative_hard": 0.0}
    for (number, _), a, w in zip(tokens, advantages, weights, strict=True):
        sign = "positive" if a > 0 else "negative"
        expected[f"mass/{sign}"] += w * abs(a) / len(tokens)
        if number <= 2:  # of four responses, at most two are right
            expected[f"mass/{sign}_hard"] += w * abs(a) / len(tokens)
    assert actual == pytest.approx(expected, abs=1e-12)
    assert 0 < actual["mass/positive_hard"] < actual["mass/positive"]


# Tokens that are likelier than expected (peaks) or not (valleys), by the sign of the advantage.
BINS = ["peaks/positive", "peaks/negative", "valleys/positive", "valleys/negative"]


def test_shares_of_peaks_and_valleys() -> None:
    c = case(2, groups=6, size=4)
    signal = method("clip_v").signal(c.old, c.batch, [c.batch])
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
    signal = method("grpo").signal(old, c.batch, [c.batch])
    assert not metrics.of_signal(signal, c.batch).keys() & {*BINS}
