"""The invariants of every step: a violation is named, and correct steps never count as violations."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from trainers import build

from harness.base.errors import CellFailure
from harness.methods.batch import TokenStats
from harness.tokens.metrics import Stopwatch
from harness.train import invariants

NAN = float("nan")


def stats(logp: float, entropy: float) -> TokenStats:
    return TokenStats(torch.tensor([-1.0, logp]), torch.tensor([0.5, entropy]))


@pytest.mark.parametrize(
    ("logp", "entropy", "sentence"),
    [
        (0.02, 1.0, "log-probabilities are not above 0; the highest is 0.02"),
        (NAN, 1.0, "log-probabilities are not above 0; the highest is nan"),
        (0.0, -0.02, "entropies lie between 0 and .*; they reach from -0.02 to 0.5, and log.10. is 2.3"),
        (0.0, math.log(10) + 0.02, "entropies lie between 0 and .*; they reach from 0.5 to 2.32"),
        (0.0, NAN, "entropies lie between 0 and .* nan"),
    ],
)
def test_statistics_that_no_distribution_has_are_named(logp: float, entropy: float, sentence: str) -> None:
    invariants.check_statistics(stats(0.0, math.log(10)), 10)
    with pytest.raises(CellFailure, match=f"^invariant violated: {sentence}"):
        invariants.check_statistics(stats(logp, entropy), 10)


def test_check_first_ratio_in_bfloat16() -> None:
    for tokens in (1, 11, 200):
        one_off = torch.zeros(tokens)
        one_off[-1] = 0.7
        invariants.check_first_ratio([one_off], torch.bfloat16)
        with pytest.raises(CellFailure, match=r"ratio of the first update is 1; \|log ratio\| is 0.7"):
            invariants.check_first_ratio([one_off], torch.float32)
    with pytest.raises(CellFailure, match=r"\|log ratio\| is 0.11"):
        invariants.check_first_ratio([torch.full((9,), -0.11), torch.tensor([0.7])], torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
def test_check_first_ratio_one_number_that_is_not_finite(value: float, dtype: torch.dtype) -> None:
    with pytest.raises(CellFailure, match="ratio of the first update is 1"):
        invariants.check_first_ratio([torch.zeros(999), torch.tensor([value])], dtype)


def test_check_changed() -> None:
    weights = {"a": torch.zeros(20, 20), "bias": torch.zeros(3)}
    before = invariants.sampled_numbers(weights)
    invariants.check_changed(before, weights, norm=1e-7, lr=1e-3)
    invariants.check_changed(before, weights, norm=1.0, lr=0.0)
    with pytest.raises(CellFailure, match="an update changes weights; none has changed, at a gradient of norm 1 and"):
        invariants.check_changed(before, weights, norm=1.0, lr=1e-3)
    weights["a"][0, 7] = 1e-6
    invariants.check_changed(before, weights, norm=1.0, lr=1e-3)


def test_train_step_checks_invariants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimiser that does nothing is noticed in the step itself."""
    trainer = build(tmp_path)
    monkeypatch.setattr(trainer.policy.optimizer, "step", lambda: None)
    with pytest.raises(CellFailure, match="an update changes weights; none has changed"):
        trainer.train_step(1, Stopwatch())
