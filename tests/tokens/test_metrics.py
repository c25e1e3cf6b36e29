"""Metrics of answers against loops over responses and tokens."""

from __future__ import annotations

import random

import pytest
import torch

from harness.base.task import Answer, Judged, Verdict
from harness.batch import Rollout, TokenBatch, TokenStats
from harness.composition import Signal
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
