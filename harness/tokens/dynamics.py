"""The change of entropy by an update: the theory's prediction from token statistics, and the measured one.

Throughout p = softmax(z / temperature) at one token, y the sampled token, S_i = p_i (H + log p_i) with sum_i S_i = 0,
S* = S_y and N = sum_i p_i S_i (TokenStats.discriminator and .expected_discriminator). All rests on dH/dz_i = -S_i and
dlog p_y/dz_i = 1[i = y] - p_i, each with a factor 1 / temperature: a step dz = a (e_y - p) / temperature, the step of
the token's own logits under gradient ascent on a log p_y, changes its entropy by

    dH = -a (S* - N) / temperature^2 + O(a^2).

A real update moves all logits through shared parameters, so a token's entropy also changes by the pushes of other
tokens: the formula predicts a direction and a proportion, not a size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from harness import ranks
from harness.methods.batch import TokenBatch, TokenStats

if TYPE_CHECKING:
    from harness.methods.composition import Method, Signal

NEEDS = frozenset({"sum_p2"})  # statistics before the update that this instrument reads, besides a method's own

# One token, all of its vocabulary: for small vocabularies, and as a check of the rest.


def entropies(p_TV: Tensor) -> Tensor:
    return torch.special.entr(p_TV).sum(-1)


def discriminators(p_TV: Tensor) -> Tensor:
    """Return S_i = p_i (H + log p_i), with 0 log 0 = 0."""
    return p_TV * entropies(p_TV)[:, None] - torch.special.entr(p_TV)


def gradient_step(p_TV: Tensor, targets_T: Tensor, push_T: Tensor, temperature: float = 1.0) -> Tensor:
    """Return dz = a (e_y - p) / temperature, the step of each token's own logits under ascent on a log p_y."""
    chosen_TV = torch.zeros_like(p_TV).scatter_(1, targets_T[:, None], 1.0)
    return push_T[:, None] * (chosen_TV - p_TV) / temperature


def first_order(p_TV: Tensor, dz_TV: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the predicted change of entropy by a step of the logits: -sum_i S_i dz_i."""
    return -(discriminators(p_TV) * dz_TV).sum(-1) / temperature


def second_order(p_TV: Tensor, dz_TV: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the next term of the series, 1/2 dz' (d2H/dz2) dz = -1/2 sum_i (S_i + p_i) (dz_i - p.dz)^2.

    It follows from dp_i = p_i (dz_i - p.dz) and dH = -S.dz put into dS_i = dp_i (H + log p_i) + p_i (dH + dlog p_i).
    """
    centred_TV = (dz_TV - (p_TV * dz_TV).sum(-1, keepdim=True)) / temperature
    return -0.5 * ((discriminators(p_TV) + p_TV) * centred_TV**2).sum(-1)


def exact(p_TV: Tensor, dz_TV: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the exact change of entropy by a step of the logits of any size."""
    return entropies(torch.softmax(p_TV.log() + dz_TV / temperature, dim=-1)) - entropies(p_TV)


# All tokens, from their statistics alone.


def deviation(stats: TokenStats) -> Tensor:
    """Return S* - N."""
    return stats.discriminator - stats.expected_discriminator


def squared_discriminators(stats: TokenStats, sampled_logp_T: Tensor) -> Tensor:
    """Return an estimate of sum_i S_i^2 from the sampled token: S*^2 over the probability that it was sampled with.

    Its expectation over the sampling is the sum, so means over many tokens are right while single ones are noisy.
    """
    assert stats.entropy is not None
    return (2 * stats.logp - sampled_logp_T).exp() * (stats.entropy + stats.logp) ** 2


@dataclass(frozen=True)
class Push:
    """Minus the gradient of a loss by each token's log p_y and H, times the tokens of its mini-batch.

    For plain GRPO at ratio 1 that is A and 0, however the batch is split.
    """

    logp: Tensor
    entropy: Tensor

    def predicted(self, stats: TokenStats, sampled_logp_T: Tensor, temperature: float = 1.0) -> Tensor:
        """Return, to first order, the change of each token's entropy by a step of its own logits along the push.

        For a step of size 1 it is (entropy sum_i S_i^2 - logp (S* - N)) / temperature^2, with the sum estimated by
        `squared_discriminators`.
        """
        by_entropy_T = self.entropy * squared_discriminators(stats, sampled_logp_T)
        return (by_entropy_T - self.logp * deviation(stats)) / temperature**2


def push_of(method: Method, signal: Signal, current: TokenStats, minibatches: Sequence[TokenBatch]) -> Push:
    """Return the push of any method on each token, from the gradient of its real loss by log p and H alone."""
    push = Push(torch.zeros_like(current.logp), torch.zeros_like(current.logp))
    for part in minibatches:
        here = current.at(part.index_T)
        assert here.entropy is not None
        logp_T, entropy_T = here.logp.detach().requires_grad_(), here.entropy.detach().requires_grad_()
        leaves = dataclasses.replace(here, logp=logp_T, entropy=entropy_T)
        fixed = method.for_step(here, signal, part).at(part.index_T)
        with torch.enable_grad():
            loss = method.loss(leaves, fixed, part)
        # A loss that does not read the entropy gets zeros by it.
        by_logp_T, by_entropy_T = torch.autograd.grad(
            loss, (logp_T, entropy_T), allow_unused=True, materialize_grads=True
        )
        tokens = part.global_tokens()
        push.logp[part.index_T] = -by_logp_T * tokens
        push.entropy[part.index_T] = -by_entropy_T * tokens
    return push


def quadrants(advantages_T: Tensor, signal_T: Tensor) -> dict[str, Tensor]:
    """Return masks by the signs of A and of S* - N (or of S*); tokens where either is 0 are in none.

    positive_above and negative_below push the entropy down, the other two push it up.
    """
    above_T, below_T = signal_T > 0, signal_T < 0
    return {
        "positive_above": (advantages_T > 0) & above_T,
        "positive_below": (advantages_T > 0) & below_T,
        "negative_above": (advantages_T < 0) & above_T,
        "negative_below": (advantages_T < 0) & below_T,
    }


# The instrument of a training step.

QUANTILES = {"q01": 0.01, "q50": 0.5, "q99": 0.99}


def of_step(
    method: Method,
    signal: Signal,
    batch: TokenBatch,
    minibatches: Sequence[TokenBatch],
    entropy_after_T: Tensor | None,
    temperature: float,
) -> dict[str, float]:
    """Return the record of the entropy's change over the updates on a rollout batch: predicted, and perhaps measured.

    `predicted` is the batch mean of `Push.predicted` at ratio 1, in nats per unit of logit step. `measured`, in nats,
    is there only with `entropy_after_T`, the entropy of the same tokens after the updates.
    """
    old = signal.old
    assert old.entropy is not None
    predicted_T = push_of(method, signal, old, minibatches).predicted(old, old.logp, temperature)
    record = {"predicted": batch.global_mean(predicted_T).item()}
    if entropy_after_T is not None:
        record |= comparison(predicted_T, entropy_after_T - old.entropy, batch)
    record |= spread("s_star", old.discriminator, batch)
    record |= spread("baseline", old.expected_discriminator, batch)
    record |= spread("deviation", deviation(old), batch)
    # The surrogate alone and without weights: added terms have no part in the push of dropped tokens.
    undropped = dataclasses.replace(
        signal,
        weights_T=torch.ones_like(signal.weights_T),
        scale_T=signal.term_scale_T,
        term_scale_T=torch.zeros_like(signal.term_scale_T),
    )
    undropped_T = push_of(method, undropped, old, minibatches).predicted(old, old.logp, temperature)
    record |= by_quadrant(signal, batch, predicted_T, undropped_T)
    return {f"dynamics/{name}": value for name, value in record.items()}


def comparison(predicted_T: Tensor, measured_T: Tensor, batch: TokenBatch) -> dict[str, float]:
    """Return the measured change, and how the predicted one explains it.

    That is their correlation over tokens, and over the means of responses, and the common logit step of least squares.
    Numbers that do not exist are left out, for example if no token has a signal.
    """
    by_token, by_sequence = [], []
    for change_T in (predicted_T.double(), measured_T.double()):
        by_token.append(ranks.gather(change_T))
        by_sequence.append(ranks.gather(batch.per_sequence(change_T) / batch.lengths_B))
    x, y = by_token
    record = {
        "measured": batch.global_mean(measured_T).item(),
        "correlation": torch.corrcoef(torch.stack(by_token))[0, 1].item(),
        "correlation_sequences": torch.corrcoef(torch.stack(by_sequence))[0, 1].item(),
        "slope": (x @ y / (x @ x)).item(),
    }
    return {name: value for name, value in record.items() if np.isfinite(value)}


def spread(name: str, x_T: Tensor, batch: TokenBatch) -> dict[str, float]:
    """Return mean, deviation and quantiles of the tokens of all ranks."""
    # Not torch.quantile, which takes no more than 2**24 values.
    quantiles = np.quantile(ranks.gather(x_T).cpu().numpy(), list(QUANTILES.values()))
    record = {f"{name}/mean": batch.global_mean(x_T).item(), f"{name}/std": batch.global_std(x_T).item()}
    return record | {f"{name}/{key}": float(value) for key, value in zip(QUANTILES, quantiles, strict=True)}


def by_quadrant(signal: Signal, batch: TokenBatch, predicted_T: Tensor, undropped_T: Tensor) -> dict[str, float]:
    """Return four numbers for each quadrant, all as parts of all tokens.

    They are its share, the share of its dropped tokens, the part of its kept tokens in the predicted change, and the
    part that the surrogate of its dropped tokens would have had.
    """
    dropped_T = signal.weights_T == 0
    record: dict[str, float] = {}
    for name, mask_T in quadrants(signal.advantages_T, deviation(signal.old)).items():
        record |= {
            f"{name}/share": batch.global_mean(mask_T).item(),
            f"{name}/dropped": batch.global_mean(mask_T & dropped_T).item(),
            f"{name}/push": batch.global_mean(predicted_T * (mask_T & ~dropped_T)).item(),
            f"{name}/push_dropped": batch.global_mean(undropped_T * (mask_T & dropped_T)).item(),
        }
    return record


# The lens: the effect of a method on the tokens of each quadrant.


@dataclass(frozen=True)
class QuadrantRow:
    """One quadrant of a batch under a method.

    Sizes and changes are summed over its tokens and divided by the number of all tokens, so that rows add up.
    """

    share: float  # of all tokens
    dropped: float  # share of the row's own tokens that have no gradient through the surrogate
    size: float  # |push on log p|: the weight times |advantage|
    plain_size: float  # the same of plain GRPO
    predicted: float  # first-order change of the mean entropy, per unit of logit step
    plain_predicted: float


def lens(
    method: Method,
    plain: Method,
    old: TokenStats,
    batch: TokenBatch,
    minibatches: Sequence[TokenBatch],
    current: TokenStats | None = None,
    temperature: float = 1.0,
) -> dict[str, QuadrantRow]:
    """Return the effect of a method on each quadrant of a rollout batch, and on the entropy, compared with `plain`.

    The quadrants are those of plain's advantages (GRPO), so that rows of several methods hold the same tokens; `rest`
    holds the tokens in none, `all` all of them. `old` has the columns that both methods need, and sum_p2. Methods that
    differ only in their clips are the same at ratio 1 (`current` None), and differ with `current`, a later policy.
    """
    current = old if current is None else current
    signal = method.signal(old, batch, list(minibatches))
    plain_signal = plain.signal(old, batch, list(minibatches))
    # Without added terms: they also push tokens that the surrogate drops.
    surrogate = dataclasses.replace(signal, term_scale_T=torch.zeros_like(signal.term_scale_T))
    dropped_T = push_of(method, surrogate, current, minibatches).logp == 0
    push = push_of(method, signal, current, minibatches)
    plain_push = push_of(plain, plain_signal, current, minibatches)
    predicted_T = push.predicted(current, old.logp, temperature)
    plain_predicted_T = plain_push.predicted(current, old.logp, temperature)

    def row(mask_T: Tensor) -> QuadrantRow:
        return QuadrantRow(
            share=batch.global_mean(mask_T).item(),
            dropped=batch.global_count(mask_T & dropped_T) / max(batch.global_count(mask_T), 1.0),
            size=batch.global_mean(push.logp.abs() * mask_T).item(),
            plain_size=batch.global_mean(plain_push.logp.abs() * mask_T).item(),
            predicted=batch.global_mean(predicted_T * mask_T).item(),
            plain_predicted=batch.global_mean(plain_predicted_T * mask_T).item(),
        )

    masks = quadrants(plain_signal.advantages_T, deviation(current))
    every_T = torch.ones_like(dropped_T)
    masks["rest"] = every_T & ~torch.stack(list(masks.values())).any(dim=0)
    return {name: row(mask_T) for name, mask_T in {**masks, "all": every_T}.items()}
