"""What must be global when a cell runs on several ranks; on one process every function is the identity."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor


def several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def whole(weight: Tensor) -> Tensor:
    """Gathered from all ranks where it is sharded (a DTensor)."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def total(value: Tensor) -> Tensor:
    """The sum over all ranks."""
    if several():
        value = value.clone()
        dist.all_reduce(value)
    return value


def gather(values_T: Tensor) -> Tensor:
    """The values of all ranks, one after the other; ranks may hold different numbers of them."""
    if not several():
        return values_T
    sizes = [torch.zeros(1, dtype=torch.long, device=values_T.device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(values_T)], device=values_T.device))
    longest = int(torch.stack(sizes).max())
    padded = values_T.new_zeros(longest)
    padded[: len(values_T)] = values_T
    parts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(size)] for part, size in zip(parts, sizes, strict=True)])
