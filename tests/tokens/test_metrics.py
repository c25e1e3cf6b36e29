"""Metrics of gradient mass against a loop over tokens."""

from __future__ import annotations

import random

import pytest
import torch

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
