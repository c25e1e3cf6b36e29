"""What is logged of every step, computed from the data that flows; means are over valid tokens unless named."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from harness.batch import Rollout, TokenBatch
from harness.method import Objective, Signal


class Stopwatch:
    """Seconds by phase of one step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.seconds[f"time/{name}_s"] = self.seconds.get(f"time/{name}_s", 0.0) + time.perf_counter() - start


def share(mask: Tensor) -> float:
    return mask.double().mean().item()


def of_rollouts(groups: list[list[Rollout]], batch: TokenBatch, verdicts: list[str]) -> dict[str, float]:
    rewards_GN = batch.grouped(batch.rewards_B)
    distinct = [len({tuple(r.response) for r in group}) / len(group) for group in groups]
    finished = [rollout.finished for group in groups for rollout in group]
    return {
        "reward/mean": batch.rewards_B.mean().item(),
        "reward/groups_without_signal": share((rewards_GN == rewards_GN[:, :1]).all(dim=1)),
        "responses/distinct": sum(distinct) / len(distinct),
        "responses/length": batch.lengths_B.double().mean().item(),
        "responses/truncated": 1 - sum(finished) / len(finished),
        **{f"verdicts/{name}": verdicts.count(name) / len(verdicts) for name in sorted(set(verdicts))},
    }


def of_mismatch(batch: TokenBatch, logp_T: Tensor) -> dict[str, float]:
    """How far the engine's log-probabilities are from the trainer's."""
    difference_T = (logp_T - batch.behaviour_logp_T).double()
    size_T = difference_T.abs()
    return {
        "mismatch/mean": size_T.mean().item(),
        "mismatch/p99": size_T.quantile(0.99).item() if len(size_T) < 2**24 else size_T.max().item(),
        "mismatch/max": size_T.max().item(),
        "mismatch/k3": (difference_T.exp() - difference_T - 1).mean().item(),
    }


def of_signal(signal: Signal, batch: TokenBatch) -> dict[str, float]:
    """Entropy before the update, advantages, and whose gradient was dropped."""
    assert signal.old.entropy is not None
    dropped_T = signal.weights_T == 0
    positive_T, negative_T = signal.advantages_T > 0, signal.advantages_T < 0
    return {
        "entropy/mean": batch.mean(signal.old.entropy).item(),
        "advantages/std": batch.std(signal.advantages_T).item(),
        "advantages/zero": share(signal.advantages_T == 0),
        "weights/mean": signal.weights_T.double().mean().item(),
        "weights/dropped": share(dropped_T),
        "weights/dropped_positive": share(dropped_T & positive_T),
        "weights/dropped_negative": share(dropped_T & negative_T),
    }


def of_ratios(log_ratios: list[Tensor], advantages: list[Tensor], objective: Objective) -> dict[str, float]:
    """Of the importance ratio, over the tokens that were trained on in all updates of a step."""
    ratio_T, advantages_T = torch.cat(log_ratios).exp(), torch.cat(advantages)
    return {
        "ratio/mean": ratio_T.double().mean().item(),
        "ratio/max": ratio_T.max().item(),
        "ratio/min": ratio_T.min().item(),
        "ratio/clipped_low": share((ratio_T < 1 - objective.clip_low) & (advantages_T < 0)),
        "ratio/clipped_high": share((ratio_T > 1 + objective.clip_high) & (advantages_T > 0)),
    }
