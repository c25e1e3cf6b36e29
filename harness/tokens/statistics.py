"""The seam for token statistics: hidden states and head in, log-probabilities and entropy statistics out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.methods.batch import TokenStats
from harness.tokens import dense, streaming
from harness.tokens.head import Columns, Head, Which

# From hidden states, head, targets and temperature to the statistics of softmax(logits / temperature): in float32, or
# in float64 if the inputs are. A logit may be -inf. The gradient goes through logp and the entropy of the likeliest
# tokens always, through the entropy with `entropy_grad`, and never through the others. All but logp are None unless
# requested.
Backend = Callable[[Tensor, Head, Tensor, float, Which], Columns]

BACKENDS: dict[str, Backend] = {"dense": dense.dense_statistics, "torch": streaming.streaming_statistics}
SMALL = 2**12  # up to this vocabulary, all logits at once are cheaper than computing them again for the gradient


def token_stats(
    hidden_TD: Tensor,
    head: Head,
    targets_T: Tensor,
    temperature: float,
    *,
    entropy: bool = True,
    entropy_grad: bool = False,
    sum_p2: bool = False,
    min_p: bool = False,
    likeliest_entropy: bool = False,
    backend: str | None = None,
) -> TokenStats:
    """Return the statistics of the targets, by the named backend or the one for the size of the vocabulary."""
    if not backend:
        backend = "dense" if len(head.weight_VD) <= SMALL else "torch"
    if torch.is_autocast_enabled(hidden_TD.device.type):
        # Cast once, for all blocks: inside, autocast is off and the backends compute in the types of their inputs.
        dtype = torch.get_autocast_dtype(hidden_TD.device.type)
        hidden_TD = hidden_TD.to(dtype)
        if hidden_TD.is_cuda:  # a CPU multiplies in float32, for which a rounded weight would be widened again
            head = Head(head.weight_VD.to(dtype), head.bias_V, head.softcap)
    with torch.autocast(hidden_TD.device.type, enabled=False):
        which = Which(entropy or entropy_grad, entropy_grad, sum_p2, min_p, likeliest_entropy)
        return TokenStats(*BACKENDS[backend](hidden_TD, head, targets_T, temperature, which))
