"""Metrics of answers against loops over responses and tokens."""

from __future__ import annotations

import random

import pytest
import torch

from harness.base.task import Answer, Judged, Verdict
from harness.methods.batch import Rollout, TokenBatch, TokenStats
from harness.methods.composition import Signal
from harness.tokens import metrics


def test_answers_are_counted_and_their_entropy_ends_with_them() -> None:
    rng = random.Random(0)
    groups = [[Rollout([1, 2], [3] * rng.randint(1, 9), [], True) for _ in range(6)] for _ in range(4)]
    for group in groups:
        for rollout in group:
            rollout.logp.extend([-1.0] * len(rollout.response))
    judged, ends = [], []
    for group in groups:
        texts = [rng.choice(["6*7-3", "7*6-3", None]) for _ in group]
        answers = [None if rng.random() < 0.2 else Answer(text, 3) for text in texts]
        judged.append([Judged(Verdict.WRONG, answer, rng.random() < 0.4 and answer is not None) for answer in answers])
        ends += [rng.randint(1, len(rollout.response)) for rollout in group]
    batch = TokenBatch.of(groups, [0.0] * 24, 9, "cpu")
    entropy_T = torch.rand(len(batch.index_T), generator=torch.Generator().manual_seed(0))
    old = TokenStats(logp=batch.behaviour_logp_T, entropy=entropy_T)
    ones_T = torch.ones_like(entropy_T)
    signal = Signal(old, ones_T, ones_T, {}, {}, ones_T, ones_T, None)

    found = metrics.of_answers(judged, ends, signal, batch)

    kept, place = [], 0
    for rollout, end in zip([rollout for group in groups for rollout in group], ends, strict=True):
        kept += entropy_T[place : place + end].tolist()
        place += len(rollout.response)
    shares = [len({one.text for one in group if one.text is not None}) / 6 for group in judged]
    after = [one.goes_on for group in judged for one in group]
    assert found == {
        "responses/distinct_answers": pytest.approx(sum(shares) / 4, abs=1e-12),
        "responses/after_answer": pytest.approx(sum(after) / 24, abs=1e-12),
        "entropy/answer": pytest.approx(sum(kept) / len(kept), abs=1e-6),
    }
    assert 0 < sum(after) < 24
    assert abs(found["entropy/answer"] - entropy_T.mean().item()) > 1e-3


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

    found = metrics.gradient_mass(signal, batch)

    expected = {"mass/positive": 0.0, "mass/negative": 0.0, "mass/positive_hard": 0.0, "mass/negative_hard": 0.0}
    for (number, _), a, w in zip(tokens, advantages, weights, strict=True):
        sign = "positive" if a > 0 else "negative"
        expected[f"mass/{sign}"] += w * abs(a) / len(tokens)
        if number <= 2:  # of four responses, at most two are right
            expected[f"mass/{sign}_hard"] += w * abs(a) / len(tokens)
    assert found == pytest.approx(expected, abs=1e-12)
    assert 0 < found["mass/positive_hard"] < found["mass/positive"]
