"""The backend that passes over the vocabulary block by block, and holds nothing of size tokens x vocabulary.

With m the running maximum, d = z - m and e = exp(d), it accumulates s = sum e, t = sum d e, q = sum e^2, r = sum d e^2:

    log p_y = z_y - m - log s        sum p^2       = q / s^2
    H       = log s - t / s          sum p^2 log p = r / s^2 - log s q / s^2

Accumulators of z itself would lose digits where logits are far from 0. One pass gives all of these; the filtered
distribution of `min_p` takes another one. The backward pass recomputes each block.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, log
from typing import Any

import torch
from torch import Tensor

from harness.tokens.head import FAR, MIN_P, TOP, Columns, Head, Which, likeliest_entropy, wide_product, widened_on_cpu

BLOCK = {"cpu": (2**7, 2**10), "cuda": (2**11, 2**14)}  # tokens x vocabulary; on a CPU a block fits into the cache


def streaming_statistics(hidden_TD: Tensor, head: Head, targets_T: Tensor, temperature: float, which: Which) -> Columns:
    which = which._replace(entropy=which.entropy or which.sum_p2)
    *columns, likeliest_TK = Streaming.apply(
        hidden_TD, head.weight_VD, head.bias_V, targets_T, head.softcap, temperature, which
    )
    # Autograd differentiates the last step, and the backward pass below spreads what comes back to the logits.
    likeliest_T = likeliest_entropy(likeliest_TK, len(head.weight_VD)) if which.likeliest_entropy else None
    return *columns, likeliest_T


def spans(size: int, step: int) -> Iterator[slice]:
    """Yield the slices of a size; always at least one, possibly empty."""
    for start in range(0, max(size, 1), step):
        yield slice(start, min(start + step, size))


def block(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """Return the logits of some tokens over a part of the vocabulary, and tanh where they are capped."""
    z = wide_product(hidden, weight.T)
    if bias is not None:
        z += bias
    if softcap is None:
        return z, None
    tanh = z.div_(softcap).tanh_()
    return softcap * tanh, tanh


def places_in_block(targets: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Return the columns of the targets in a block, and whether they are in it."""
    inside = (targets >= columns.start) & (targets < columns.stop)
    return torch.where(inside, targets - columns.start, 0), inside


class Streaming(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_T: Tensor,
        softcap: float | None,
        temperature: float,
        which: Which,
    ) -> tuple[Tensor | None, ...]:
        entropy, entropy_grad, sum_p2, min_p, likeliest = which
        masked = bias_V is not None  # only a bias can make a logit -inf
        tokens, vocabulary = BLOCK[hidden_TD.device.type]
        columns_by_row: dict[str, list[Tensor]] = {
            name: [] for name in ("m", "log_s", "logp", "entropy", "sum_p2", "sum_p2_logp", "min_p_logp", "likeliest")
        }
        places = []  # of the likeliest tokens in the vocabulary
        for rows in spans(len(hidden_TD), tokens):
            hidden, targets = hidden_TD[rows], targets_T[rows]
            # A few numbers for each token: in double they cost nothing, and only the sums within a block round.
            zero = torch.zeros(len(hidden), dtype=torch.float64, device=hidden.device)
            # Finite and not -inf: if the first block holds only masked tokens, -inf - -inf would be NaN.
            m = torch.full_like(zero, torch.finfo(torch.float32).min / 4)
            chosen = s = t = q = r = zero
            of_blocks: list[tuple[Tensor, Tensor]] = []  # the likeliest tokens of each: logits and places
            for columns in spans(len(weight_VD), vocabulary):
                z, _ = block(hidden, weight_VD[columns], None if bias_V is None else bias_V[columns], softcap)
                if temperature != 1:
                    z /= temperature
                if likeliest:
                    largest, place = z.topk(min(TOP, z.shape[1]))
                    of_blocks.append((largest, place + columns.start))
                place, inside = places_in_block(targets, columns)
                chosen = torch.where(inside, z.gather(1, place[:, None]).squeeze(1).double(), chosen)
                before, m = m, torch.maximum(m, z.amax(dim=1).double())
                delta = (before - m).clamp(min=FAR)
                z -= m[:, None].to(z.dtype)
                if masked:
                    z.clamp_(min=FAR)
                e = z.exp()
                shrink = delta.exp()
                # The order matters. z becomes d e and then d e^2 in place; the second product needs the first, and so
                # `which` has entropy wherever it has sum_p2. t and r read s and q as they were before this block, and q
                # squares e in place.
                if entropy:
                    t = (t + delta * s) * shrink + z.mul_(e).sum(dim=1).double()
                s = s * shrink + e.sum(dim=1).double()
                if sum_p2:
                    r = (r + delta * q) * shrink**2 + z.mul_(e).sum(dim=1).double()
                    q = q * shrink**2 + e.square_().sum(dim=1).double()
            log_s = s.log()
            columns_by_row["m"].append(m)
            columns_by_row["log_s"].append(log_s)
            columns_by_row["logp"].append(chosen - m - log_s)
            if entropy:
                columns_by_row["entropy"].append(log_s - t / s)
            if sum_p2:
                columns_by_row["sum_p2"].append(q / s**2)
                columns_by_row["sum_p2_logp"].append((r - log_s * q) / s**2)
            if min_p:
                # A second pass: which tokens are kept is known only with the largest logit of all blocks.
                kept = zero
                for columns in spans(len(weight_VD), vocabulary):
                    z, _ = block(hidden, weight_VD[columns], None if bias_V is None else bias_V[columns], softcap)
                    d = z / temperature - m[:, None].to(z.dtype)
                    kept = kept + d.exp().masked_fill_(d < log(MIN_P), 0).sum(dim=1).double()
                removed = chosen - m < log(MIN_P)
                columns_by_row["min_p_logp"].append((chosen - m - kept.log()).masked_fill(removed, -inf))
            if likeliest:
                z, place = (torch.cat(parts, dim=1) for parts in zip(*of_blocks, strict=True))
                largest, index = z.topk(TOP)
                columns_by_row["likeliest"].append(largest)
                places.append(place.gather(1, index))
        dtype = torch.promote_types(hidden_TD.dtype, torch.float32)
        joined = {name: torch.cat(parts).to(dtype) if parts else None for name, parts in columns_by_row.items()}
        statistics = (joined["m"], joined["log_s"], joined["entropy"], torch.cat(places) if places else None)
        ctx.save_for_backward(hidden_TD, weight_VD, bias_V, targets_T, *statistics)
        ctx.softcap, ctx.temperature, ctx.entropy_grad = softcap, temperature, entropy_grad
        fixed = ["sum_p2", "sum_p2_logp", "min_p_logp"]
        if not entropy_grad:
            fixed.append("entropy")
        without_gradient = [joined[name] for name in fixed if joined[name] is not None]
        ctx.mark_non_differentiable(*without_gradient)
        names = ("logp", "entropy", "sum_p2", "sum_p2_logp", "min_p_logp", "likeliest")
        return tuple(joined[name] for name in names)

    @staticmethod
    def backward(ctx: Any, by_logp: Tensor, by_entropy: Tensor, *by_others: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, by dlog p_y / dz_i = [i = y] - p_i and dH / dz_i = -p_i (H + log p_i)."""
        hidden_TD, weight_VD, bias_V, targets_T, m_T, log_s_T, entropy_T, place_TK = ctx.saved_tensors
        inputs = (hidden_TD, weight_VD, bias_V)
        # The sums over all blocks, in float32 also where the inputs are shorter.
        gradients = []
        for x, needed in zip(inputs, ctx.needs_input_grad, strict=False):  # which has all arguments of `forward`
            gradients.append(torch.zeros_like(x, dtype=m_T.dtype) if needed else None)
        by_hidden, by_weight, by_bias = gradients
        tokens, vocabulary = BLOCK[hidden_TD.device.type]
        for rows in spans(len(hidden_TD), tokens):
            hidden, targets = hidden_TD[rows], targets_T[rows]
            for columns in spans(len(weight_VD), vocabulary):
                weight = weight_VD[columns]
                z, tanh = block(hidden, weight, None if bias_V is None else bias_V[columns], ctx.softcap)
                if ctx.temperature != 1:
                    z /= ctx.temperature
                # One after the other: the sum of m and log s would lose digits of log s where m is large.
                z -= m_T[rows, None]
                z -= log_s_T[rows, None]  # log p
                p = z.exp()
                # Both derivatives contain p_i: pull is the sum of their other factors, times the incoming gradients.
                pull = -by_logp[rows, None]
                if ctx.entropy_grad:
                    pull = z.clamp_(min=FAR).add_(entropy_T[rows, None]).mul_(-by_entropy[rows, None]).add_(pull)
                slope = p.mul_(pull)
                place, inside = places_in_block(targets, columns)
                slope.scatter_add_(1, place[:, None], torch.where(inside, by_logp[rows], 0)[:, None])
                if place_TK is not None:
                    place, inside = places_in_block(place_TK[rows], columns)
                    slope.scatter_add_(1, place, torch.where(inside, by_others[-1][rows], 0))
                slope /= ctx.temperature
                if tanh is not None:
                    slope *= 1 - tanh**2
                if by_bias is not None:
                    by_bias[columns] += slope.sum(dim=0)
                # A product needs factors of one type: on CUDA that of the inputs, which may be bfloat16.
                slope = slope.to(widened_on_cpu(hidden).dtype)
                if by_hidden is not None:
                    by_hidden[rows] += wide_product(slope, weight)
                if by_weight is not None:
                    by_weight[columns] += wide_product(slope.T, hidden)
        cast = [None if grad is None else grad.to(x.dtype) for grad, x in zip(gradients, inputs, strict=True)]
        return *cast, None, None, None, None
