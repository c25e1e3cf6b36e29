"""The head of a language model, and the product with its weight.

Shorter types are multiplied in float32: rounded to bfloat16, a logit of 20 is off by up to 0.06, and log p with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

FAR = -1e4  # of log p, and of a logit below the largest one: from here on p is 0 in every type
# The share of the largest probability that a token must have to stay in the filtered distribution of `min_p_logp`: the
# value of arXiv:2510.03222, whose method alone reads it.
MIN_P = 0.02
TOP = 2  # the number of tokens of `likeliest_entropy`: the value of arXiv:2602.03635, whose method alone reads it
# The first ones of TokenStats, from logp to likeliest_entropy.
Columns = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


class Which(NamedTuple):
    """The columns that are wanted in addition to log p, and whether the entropy has a gradient."""

    entropy: bool
    entropy_grad: bool
    sum_p2: bool
    min_p: bool
    likeliest_entropy: bool


@dataclass(frozen=True)
class Head:
    """Logits from hidden states: softcap * tanh((weight @ hidden + bias) / softcap), or without either."""

    weight_VD: Tensor
    bias_V: Tensor | None = None
    softcap: float | None = None


def wide(x: Tensor) -> Tensor:
    """Return a tensor in float32, or in float64 where it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def likeliest_entropy(logits_TV: Tensor, vocabulary: int) -> Tensor:
    """Return the entropy of the softmax of the largest logits, times log V / log TOP: up to log V, as the entropy."""
    log_q_TK = logits_TV.topk(TOP).values.log_softmax(-1)
    entropy_T = -(log_q_TK.exp() * log_q_TK.clamp(min=FAR)).sum(-1)
    return entropy_T * (log(vocabulary) / log(TOP))


def widened_on_cpu(x: Tensor) -> Tensor:
    """Return a tensor widened if it is on a CPU, where shorter types lose precision and gain no speed."""
    return x if x.is_cuda else wide(x)


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two matrices in float32.

    On CUDA the kernels for shorter types write float32. Autograd cannot differentiate that call (`out_dtype`), so a
    caller that needs a gradient computes it explicitly, as harness/tokens/streaming.py does.
    """
    a, b = widened_on_cpu(a), widened_on_cpu(b)
    return torch.mm(a, b, out_dtype=torch.float32) if a.dtype.itemsize < 4 else a @ b
