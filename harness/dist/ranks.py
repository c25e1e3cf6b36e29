"""The numbers, objects and weights that the ranks of a cell share; on one process every function is the identity.

A rank is a process with a device of its own. All ranks run the same loop, each on its share of the prompts, and hold
the weights among them. Whatever gathers or adds up is a collective: every rank must come to it, in the same order.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from harness.base.errors import CellFailure, UserError

T = TypeVar("T")

JOINING = timedelta(minutes=10)  # for the others to begin
BEAT, SILENCE = 3.0, 40.0  # seconds from one sign of life to the next, and without one
PATIENCE = timedelta(hours=6)  # for the others, who may be sampling, or waiting for what the first one writes or judges


def several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def count() -> int:
    return dist.get_world_size() if several() else 1


def number() -> int:
    return dist.get_rank() if several() else 0


@contextmanager
def joined(world: int, device: str, lost: Callable[[str], None] = print) -> Iterator[None]:
    """Joins the other ranks, as the one that RANK names: of one machine through the file RENDEZVOUS, otherwise as
    torchrun has it, through MASTER_ADDR and MASTER_PORT. `lost` hears why this rank ends where another one is gone."""
    if world == 1:
        yield
        return
    rank, local, given = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    if given != world:
        raise UserError(
            f"{given} processes were started for this cell (WORLD_SIZE), but hardware.nodes x hardware.ranks is {world}"
        )
    if device == "cuda":
        devices = torch.cuda.device_count()
        if devices <= local:
            raise UserError(f"a machine has ranks up to {local} of this cell, but {devices} CUDA devices")
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    alone = "RENDEZVOUS" in os.environ
    where = f"file://{os.environ['RENDEZVOUS']}" if alone else "env://"
    try:
        store, _, _ = next(dist.rendezvous(where, rank, world, timeout=JOINING))
    except dist.DistError as error:
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise CellFailure(f"rank {rank} of {world} did not meet the others at {place} ({error})") from error
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    ended = threading.Event()
    if not alone:
        threading.Thread(target=watch, args=(rank, world, ended, lost), daemon=True).start()
    yield
    # Not where an error ends this rank: all this would wait for the others, and they wait for this rank.
    if not alone:
        dist.barrier()  # the first to be ready would seem to be gone
        ended.set()
    dist.destroy_process_group()


def watch(rank: int, world: int, ended: threading.Event, lost: Callable[[str], None]) -> None:
    """Gives signs of life, and ends this process when another rank gives none any more, which might be waited for for
    hours. It has a connection of its own, since others may wait on theirs."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    heard: dict[int, tuple[int, float]] = {}
    while not ended.wait(BEAT):
        try:
            store.add(f"alive/{rank}", 1)
            beats = {other: store.add(f"alive/{other}", 0) for other in range(world)}
        except (dist.DistError, RuntimeError) as error:  # torch raises either
            gone = f"rank {rank} has lost touch with the others ({str(error).splitlines()[0]})"
        else:
            now = time.monotonic()
            heard = {other: heard[other] if heard.get(other, (-1,))[0] == n else (n, now) for other, n in beats.items()}
            silent = [other for other, (_, since) in heard.items() if now - since > SILENCE]
            if not silent:
                continue
            gone = f"rank {silent[0]} of {world} gave no sign of life for {SILENCE:g} seconds"
        if not ended.is_set():
            lost(gone)
            os._exit(1)


def end_with_parent(leaving: threading.Event) -> None:
    """End this process when its parent is gone; otherwise it might wait for other ranks for hours.

    The parent holds the other end of this process's stdin, which closes with the parent. A byte on it sets `leaving`:
    the rank is asked to stop after the step at hand.
    """

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            leaving.set()
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


def each(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Returns the values of all ranks, in their order; through a group of `apart` where it is given."""
    if not several():
        return [value]
    found: list[Any] = [None] * count()
    dist.all_gather_object(found, value, group)
    return found


def apart() -> dist.ProcessGroup | None:
    """Returns a group of all ranks for the collectives of another thread; None on one process."""
    return dist.new_group(timeout=PATIENCE, backend="gloo") if several() else None


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


def here(weight: Tensor) -> Tensor:
    """Returns what this rank holds of a weight, itself and no copy."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def on_cpu(weight: Tensor) -> Tensor:
    """Returns a copy on the CPU, divided among the ranks as the weight is."""
    copy = here(weight.detach()).to("cpu", copy=True)
    if not isinstance(weight, DTensor):
        return copy
    return DTensor.from_local(copy, cpus(), weight.placements, shape=weight.shape, stride=weight.stride())


@cache
def cpus() -> DeviceMesh:
    return init_device_mesh("cpu", (count(),))
