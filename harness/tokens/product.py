"""Multiplies shorter types in float32. Rounded to bfloat16, a logit of 20 is off by up to 0.06, and log p with it."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def widened(x: Tensor) -> Tensor:
    """Widens what a CPU multiplies: it rounds products of shorter types to them, and is no faster with them."""
    return x if x.is_cuda else wide(x)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies two matrices; on CUDA by its kernels for shorter types, through which autograd has no way."""
    a, b = widened(a), widened(b)
    return torch.mm(a, b, out_dtype=torch.float32) if a.dtype.itemsize < 4 else a @ b
