"""The record of a training step: all of its numbers, assembled in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from harness import ranks
from harness.methods.batch import TokenBatch, TokenStats
from harness.methods.composition import Method, Signal
from harness.tokens import metrics
from harness.train.collect import Collected


@dataclass
class Updates:
    """Everything that the optimizer steps of one training step leave for its record."""

    log_ratios: list[Tensor] = field(default_factory=list)  # of each part that was trained on
    touched: list[dict[str, Tensor]] = field(default_factory=list)
    logged: list[dict[str, Tensor]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of each mini-batch, on this rank
    norms: list[float] = field(default_factory=list)
    base_losses: list[float] = field(default_factory=list)  # losses of right responses of the model before training

    def add_part(self, method: Method, current: TokenStats, fixed: Signal, part: TokenBatch) -> None:
        """Keep what the record needs of a part, without its graph."""
        now = current.detach()
        self.log_ratios.append(now.logp - fixed.old.logp)
        self.touched.append(method.touched(now, fixed, part))
        self.logged.append(method.update_metrics(now, fixed, part))

    def add_update(self, loss: float, norm: float) -> None:
        self.losses.append(loss)
        self.norms.append(norm)


def record_of_step(
    method: Method,
    batch: TokenBatch,
    signal: Signal,
    collected: Collected,
    mismatch: dict[str, float],
    updates: Updates,
    critic: dict[str, float],
    generated: dict[str, float],
) -> dict[str, float]:
    """Return the numbers that are logged of a training step; a collective, since most are means over all ranks.

    `signal` is the one before the importance correction: its weights say what the method drops, for any
    rounding of the engine. The order of the keys is that of the lines in metrics.jsonl.
    """
    verdicts = list(map(str, collected.verdicts))
    return {
        **metrics.of_rollouts(batch, verdicts),
        **mismatch,
        **metrics.of_signal(signal, batch),
        **metrics.of_answers(collected.judged, collected.answer_tokens, signal, batch),
        **metrics.of_ratios(updates.log_ratios, updates.touched),
        **metrics.of_updates(updates.logged),
        **method.metrics(signal, batch),
        **critic,
        "loss/policy": mean_loss(updates.losses),
        **({"loss/base": mean_loss(updates.base_losses)} if updates.base_losses else {}),
        "gradient/norm": float(np.mean(updates.norms)),
        "tokens/trained": batch.global_tokens(),
        **generated,
    }


def mean_loss(losses: Sequence[float]) -> float:
    """Return the mean loss of the mini-batches; each rank has a part of each loss, so the parts are added up."""
    return ranks.sum_over_ranks(torch.tensor(losses, dtype=torch.float64)).mean().item()
