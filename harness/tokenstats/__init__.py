"""The one seam for token statistics: hidden states and head in, log-probabilities and entropy statistics out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from harness.batch import TokenStats

Columns = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]  # the first fields of TokenStats
CHUNK = 2**25  # logits held at once (tokens x vocabulary)


def token_stats(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    temperature: float,
    *,
    entropy: bool = True,
    entropy_grad: bool = False,
    sum_p2: bool = False,
) -> TokenStats:
    """Statistics of softmax(hidden @ weight.T / temperature), in float32, a chunk of tokens at a time.

    The gradient goes through logp always, through the entropy on demand, and never through the other two. With a
    gradient, chunks are computed again in the backward pass, so that the logits of one chunk are all that is held.
    """
    chunk = max(CHUNK // len(weight_VD), 1)
    spans = [slice(start, start + chunk) for start in range(0, len(targets_T), chunk)]

    def of(span: slice) -> Columns:
        arguments = (hidden_TD[span], weight_VD, targets_T[span], temperature, entropy, entropy_grad, sum_p2)
        if torch.is_grad_enabled() and len(spans) > 1:
            return checkpoint(_dense, *arguments, use_reentrant=False)
        return _dense(*arguments)

    return TokenStats.cat([TokenStats(*of(span)) for span in spans])


def _dense(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    temperature: float,
    entropy: bool,
    entropy_grad: bool,
    sum_p2: bool,
) -> Columns:
    logp_TV = torch.log_softmax((hidden_TD @ weight_VD.T).float() / temperature, dim=-1)
    logp_T = logp_TV.gather(1, targets_T[:, None]).squeeze(1)
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_grad):
        # 0 log 0 = 0, also where a logit is -inf.
        p_TV = logp_TV.exp()
        p_logp_TV = p_TV * logp_TV.clamp(min=torch.finfo(torch.float32).min)
        entropy_T = -p_logp_TV.sum(-1) if entropy or entropy_grad else None
    if not sum_p2:
        return logp_T, entropy_T, None, None
    with torch.no_grad():
        return logp_T, entropy_T, (p_TV * p_TV).sum(-1), (p_TV * p_logp_TV).sum(-1)
