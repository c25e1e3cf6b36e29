"""The importance correction for the engine's sampling, the same for all methods.

Tokens are sampled by the engine and trained on as if the trainer had sampled them. The ratio of the two probabilities,
before the update, corrects for the difference; bounds keep its variance finite. It multiplies the weights of tokens,
and changes neither a denominator nor anything that a method computes. docs/rollouts.md has formulas and sources.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from harness.config import Correction
from harness.methods.batch import TokenBatch
from harness.methods.composition import Signal


def log_ratios(batch: TokenBatch, logp_T: Tensor, level: str) -> Tensor:
    """Return log p of the trainer minus log p of the engine, of each token or each response."""
    # In double, since float32 would round in the sum over a long response.
    difference_T = logp_T.double() - batch.behaviour_logp_T.double()
    return difference_T if level == "token" else batch.per_sequence(difference_T)


def beyond(ratios: Tensor, settings: Correction) -> Tensor:
    """Return which ratios the bounds change."""
    return (ratios > settings.high) | (ratios < settings.low)


def correction_factors(batch: TokenBatch, logp_T: Tensor, settings: Correction) -> Tensor:
    """Return the factor of each token's gradient."""
    # The ratio of a long response may overflow to infinity; either kind replaces that by a finite factor.
    ratios = log_ratios(batch, logp_T, settings.level).exp()
    if settings.kind == "truncated":
        ratios = ratios.clamp(max=settings.high)
    else:
        ratios = ratios.masked_fill(beyond(ratios, settings), 0.0)
    ratio_T = ratios if settings.level == "token" else ratios[batch.sequence_T]
    return ratio_T.to(logp_T)


def correct(signal: Signal, batch: TokenBatch, settings: Correction) -> Signal:
    if settings.kind == "off":
        return signal
    return dataclasses.replace(
        signal, weights_T=signal.weights_T * correction_factors(batch, signal.old.logp, settings)
    )
