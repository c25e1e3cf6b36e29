"""The numbers, objects and weights that the ranks of a cell share; on one process every function is the identity.

A rank is a process with a device of its own. All ranks run the same loop, each on its share of the prompts, and hold
the weights among them. Whatever gathers or adds up is a collective: every rank must come to it, in the same order.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from harness.base.errors import UserError

T = TypeVar("T")

PATIENCE = timedelta(hours=6)  # for the others, who may be sampling, or waiting for what the first one writes or judges


def several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def count() -> int:
    return dist.get_world_size() if several() else 1


def number() -> int:
    return dist.get_rank() if several() else 0


@contextmanager
def joined(world: int, device: str) -> Iterator[None]:
    """Joins the other ranks, as the one that RANK names; they find each other through the file RENDEZVOUS."""
    if world == 1:
        yield
        return
    rank = int(os.environ["RANK"])
    if device == "cuda":
        devices = torch.cuda.device_count()
        if devices < world:
            raise UserError(f"hardware.ranks is {world}; allowed: up to {devices}, the CUDA devices that are here")
        torch.cuda.set_device(rank)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    place = f"file://{os.environ['RENDEZVOUS']}"
    dist.init_process_group(backend, init_method=place, rank=rank, world_size=world, timeout=PATIENCE)
    yield
    # Not where an error ends this rank: destroying the group would wait for the others, and they wait for this rank.
    dist.destroy_process_group()


def end_with_parent() -> None:
    """Ends this process when its parent is gone; otherwise it might wait for other ranks for hours.

    The parent holds the other end of our stdin, which closes with it.
    """

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# Numbers and objects


def total(value: Tensor) -> Tensor:
    """Returns the sum over all ranks."""
    if several():
        value = value.clone()
        dist.all_reduce(value)
    return value


def most(value: int) -> int:
    return max(each(value))


def gather(values_T: Tensor) -> Tensor:
    """Returns the values of all ranks, one rank after the other; ranks may hold different numbers of them."""
    if not several():
        return values_T
    sizes = each(len(values_T))
    padded = values_T.new_zeros(max(sizes))
    padded[: len(values_T)] = values_T
    parts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def each(value: T) -> list[T]:
    """Returns the values of all ranks, in their order."""
    if not several():
        return [value]
    found: list[Any] = [None] * count()
    dist.all_gather_object(found, value)
    return found


def of_first(value: T) -> T:
    """Returns the value of rank 0."""
    if not several():
        return value
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    found: T = box[0]
    return found


def averaged(record: dict[str, float]) -> dict[str, float]:
    """Returns the mean over ranks of each number; a rank that does not name a number counts as 0."""
    records = each(record)
    names = dict.fromkeys(name for found in records for name in found)
    return {name: sum(found.get(name, 0.0) for found in records) / len(records) for name in names}


# Weights


def shard(root: nn.Module, layers: list[nn.Module], device: str) -> None:
    """Divides the parameters among the ranks; those of a layer are gathered when it computes, and given up after.

    Gradients are added up over ranks, since the loss of each rank is a part of one sum.
    """
    mesh = init_device_mesh(device, (count(),))
    for module in [*layers, root]:
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor, not even with 1


def held(module: nn.Module) -> dict[str, Tensor]:
    """Returns the weights by name, each as the optimiser holds it: where weights are sharded, this rank's shard.

    `named_parameters` would not do: after a forward pass it may list whole copies that were gathered for that pass,
    and the optimiser's next step does not reach those.
    """
    return module.state_dict()


def whole(weight: Tensor) -> Tensor:
    """Returns the whole weight, gathered from all ranks where it is sharded (a DTensor)."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def whole_on_first(state: Any) -> Any:
    """Returns a state dict with whole tensors on rank 0, which alone keeps it; on other ranks it has None for them."""
    if isinstance(state, dict):
        return {key: whole_on_first(value) for key, value in state.items()}
    if not isinstance(state, DTensor):
        return state
    gathered = whole(state)
    return gathered.cpu() if number() == 0 else None


def like(weight: Tensor, given: Tensor) -> Tensor:
    """Returns the part of a whole tensor that this rank holds, divided like the weight it belongs to."""
    if not isinstance(weight, DTensor) or given.shape != weight.shape:
        return given
    divided = distribute_tensor(given.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)
    return divided.clone()  # what came of it is a view, which would keep the whole
