"""The backend that holds all logits at once: nothing is computed twice, fastest where the vocabulary is small."""

from __future__ import annotations

from math import inf, log

import torch
from torch import Tensor

from harness.tokens.head import FAR, MIN_P, Columns, Head, Which, likeliest_entropy, wide


def dense_statistics(hidden_TD: Tensor, head: Head, targets_T: Tensor, temperature: float, which: Which) -> Columns:
    logits_TV = wide(hidden_TD) @ wide(head.weight_VD).T
    if head.bias_V is not None:
        logits_TV = logits_TV + head.bias_V
    if head.softcap is not None:
        logits_TV = head.softcap * torch.tanh(logits_TV / head.softcap)
    logp_TV = torch.log_softmax(logits_TV / temperature, dim=-1)
    logp_T = logp_TV.gather(1, targets_T[:, None]).squeeze(1)
    with torch.set_grad_enabled(torch.is_grad_enabled() and which.entropy_grad):
        # 0 log 0 = 0, also where a logit is -inf: log 0 is replaced by a number. It is not a very large one, since it
        # is a factor of the gradient on its way to p = 0.
        p_TV = logp_TV.exp()
        p_logp_TV = p_TV * logp_TV.clamp(min=FAR)
        entropy_T = -p_logp_TV.sum(-1) if which.entropy else None
    with torch.no_grad():
        sum_p2_T = (p_TV * p_TV).sum(-1) if which.sum_p2 else None
        sum_p2_logp_T = (p_TV * p_logp_TV).sum(-1) if which.sum_p2 else None
        min_p_logp_T = filtered_logp(logp_TV, logp_T) if which.min_p else None
    likeliest_entropy_T = likeliest_entropy(logp_TV, len(head.weight_VD)) if which.likeliest_entropy else None
    return logp_T, entropy_T, sum_p2_T, sum_p2_logp_T, min_p_logp_T, likeliest_entropy_T


def filtered_logp(logp_TV: Tensor, logp_T: Tensor) -> Tensor:
    """Return log p after all tokens below MIN_P of the largest probability are removed; -inf of a removed token."""
    least_T = logp_TV.amax(-1) + log(MIN_P)
    kept_TV = logp_TV.masked_fill(logp_TV < least_T[:, None], -inf)
    return (logp_T - kept_TV.logsumexp(-1)).masked_fill(logp_T < least_T, -inf)
