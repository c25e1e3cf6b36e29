"""The numbers, objects and weights that the ranks of a cell share; on one process every function is the identity.

A rank is a process with its own device. All ranks run the same loop, each on its share of the prompts, and the weights
are sharded over them. A function that gathers or adds up is a collective: every rank must call it, in the same order.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from harness.base.errors import CellFailure, UserError

T = TypeVar("T")

JOINING = timedelta(minutes=10)  # longest wait for the other ranks to start
BEAT, SILENCE = 3.0, 40.0  # seconds between two signs of life, and without one until a rank counts as gone
# Longest wait in a collective. Other ranks may be sampling, or rank 0 may be writing a checkpoint or judging answers; a
# rank that is gone is noticed by `watch`, long before.
PATIENCE = timedelta(hours=6)


ONLY = ContextVar("only", default=False)


@contextmanager
def as_only_rank() -> Iterator[None]:
    """Let this process compute as the only rank, on data that it has gathered from all processes before."""
    token = ONLY.set(True)
    try:
        yield
    finally:
        ONLY.reset(token)


def several() -> bool:
    return not ONLY.get() and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def count() -> int:
    return dist.get_world_size() if several() else 1


def own_rank() -> int:
    return dist.get_rank() if several() else 0


@contextmanager
def process_group(world: int, device: str, lost: Callable[[str], None] = print) -> Iterator[None]:
    """Join the other ranks as the rank in RANK, until the context ends.

    On one machine they meet through the file RENDEZVOUS, otherwise like torchrun through MASTER_ADDR and MASTER_PORT.
    `lost` is called with the reason before this rank ends because another one is gone.
    """
    if world == 1:
        yield
        return
    rank = int(os.environ["RANK"])
    local = int(os.environ["LOCAL_RANK"])
    started = int(os.environ["WORLD_SIZE"])
    if started != world:
        raise UserError(
            f"{started} processes were started for this cell (WORLD_SIZE), but hardware.nodes x hardware.ranks is "
            f"{world}"
        )
    if device == "cuda":
        devices = torch.cuda.device_count()
        if devices <= local:
            raise UserError(f"a machine has ranks up to {local} of this cell, but {devices} CUDA devices")
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    one_machine = "RENDEZVOUS" in os.environ
    where = f"file://{os.environ['RENDEZVOUS']}" if one_machine else "env://"
    # Not by `init_process_group`, which has only one time limit for meeting and for all later collectives.
    try:
        store, _, _ = next(dist.rendezvous(where, rank, world, timeout=JOINING))
    except dist.DistError as error:
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise CellFailure(f"rank {rank} of {world} did not meet the others at {place} ({error})") from error
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    ended = threading.Event()
    if not one_machine:
        threading.Thread(target=watch, args=(rank, world, ended, lost), daemon=True).start()
    yield
    # Not in a `finally`: after an error on this rank, the calls below would wait for the others, which wait for it.
    if not one_machine:
        dist.barrier()  # without it, the first rank to finish would seem to be gone
        ended.set()
    dist.destroy_process_group()


def watch(rank: int, world: int, ended: threading.Event, lost: Callable[[str], None]) -> None:
    """Give signs of life, and end this process when another rank gives none: it might wait for that rank for hours.

    The thread has its own connection, since the main thread may be waiting on the other one.
    """
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    last_beats: dict[int, tuple[int, float]] = {}  # of each rank: its counter, and the time of its last change here
    while not ended.wait(BEAT):
        try:
            store.add(f"alive/{rank}", 1)
            # Adding 0 reads a counter; `get` would wait for a rank that has not counted yet.
            beats = {other: store.add(f"alive/{other}", 0) for other in range(world)}
        except (dist.DistError, RuntimeError) as error:  # torch raises either
            gone = f"rank {rank} has lost touch with the others ({str(error).splitlines()[0]})"
        else:
            now = time.monotonic()
            for other, beat in beats.items():
                if other not in last_beats or last_beats[other][0] != beat:
                    last_beats[other] = (beat, now)
            silent = [other for other, (_, since) in last_beats.items() if now - since > SILENCE]
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


def sum_over_ranks(value: Tensor) -> Tensor:
    if several():
        value = value.clone()  # all_reduce works in place
        dist.all_reduce(value)
    return value


def most(value: int) -> int:
    """Return the largest value of all ranks."""
    return max(each(value))


def gather(values_T: Tensor) -> Tensor:
    """Return the values of all ranks, one rank after the other; ranks may have different numbers of them."""
    if not several():
        return values_T
    sizes = each(len(values_T))  # all_gather takes equal shapes only, so values are padded
    padded = values_T.new_zeros(max(sizes))
    padded[: len(values_T)] = values_T
    parts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def each(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Return the values of all ranks, in their order; `group`: from `apart`, for another thread."""
    if not several():
        return [value]
    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value, group)
    return values


def apart() -> dist.ProcessGroup | None:
    """Return a group of all ranks for the collectives of another thread; None on one process.

    Collectives of two threads in one group could meet in another order on each rank.
    """
    return dist.new_group(timeout=PATIENCE, backend="gloo") if several() else None


def of_first(value: T) -> T:
    """Return the value of rank 0."""
    if not several():
        return value
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    first: T = box[0]
    return first


def averaged(record: dict[str, float]) -> dict[str, float]:
    """Return the mean over ranks of each number; it counts as 0 on a rank that does not have it."""
    records = each(record)
    # A dict keeps the order of the first rank, which is the same on all ranks.
    names = dict.fromkeys(name for of_rank in records for name in of_rank)
    means = {}
    for name in names:
        means[name] = sum(of_rank.get(name, 0.0) for of_rank in records) / len(records)
    return means


# Weights


def shard(
    root: nn.Module,
    layers: list[nn.Module],
    device: str,
    dtype: torch.dtype = torch.float32,
    wide: Sequence[nn.Module] = (),
) -> None:
    """Shard the parameters over the ranks; a layer's parameters are gathered when it computes, and released after.

    They are gathered in the type of the computation, half of the bytes in bfloat16, except in the modules of `wide`.
    Gradients are added up over ranks in float32, and not averaged, since the loss of each rank is a part of one sum.
    """
    mesh = init_device_mesh(device, (count(),))
    shorter = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = MixedPrecisionPolicy() if dtype == torch.float32 else shorter
    for module in wide:
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    for module in [*layers, root]:
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor, not even with 1


def local_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the weights by name, as the optimizer has them: this rank's shards, if weights are sharded.

    Not by `named_parameters`: after a forward pass it may list whole copies that were gathered for that pass, which the
    optimizer's next step does not reach.
    """
    return module.state_dict()


def whole_weight(weight: Tensor) -> Tensor:
    """Return the whole weight, gathered from all ranks if it is sharded (a DTensor)."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def whole_on_first(weight: Tensor) -> Tensor | None:
    """Return the whole weight on rank 0, in the machine's memory, and None on the other ranks."""
    whole = whole_weight(weight)  # by all ranks, since it is a collective
    return whole.cpu() if own_rank() == 0 else None


def here(weight: Tensor) -> Tensor:
    """Return this rank's part of a weight, not copied."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def on_cpu(weight: Tensor) -> Tensor:
    """Return a copy on the CPU, sharded like the weight."""
    copy = here(weight.detach()).to("cpu", copy=True)
    if not isinstance(weight, DTensor):
        return copy
    return DTensor.from_local(copy, cpus(), weight.placements, shape=weight.shape, stride=weight.stride())


@cache
def cpus() -> DeviceMesh:
    return init_device_mesh("cpu", (count(),))


# Work that only rank 0 requests and all ranks share: the sampling of evaluations, and the difficulty filter

Work = Callable[..., list[Any]]  # takes a list of items, and settings by name; returns a result for each item


@contextmanager
def on_all_ranks(work: Work) -> Iterator[Work | None]:
    """Yield to rank 0 the same work, done by all ranks; the other ranks get None when rank 0 leaves the context.

    Until then they do their shares of each request inside this context.
    """
    if not several():
        yield work
    elif own_rank() == 0:

        def shared(items: list[Any], **settings: Any) -> list[Any]:
            request = of_first((items, settings))
            return shared_work(work, *request)

        yield shared
        of_first(None)  # the sign for the others to go on
    else:
        while (request := of_first(None)) is not None:
            shared_work(work, *request)
        yield None


def shared_work(work: Work, items: Sequence[Any], settings: dict[str, Any]) -> list[Any]:
    """Do this rank's share; return the results of all ranks in the order of the items."""
    world = count()
    own_items = items[own_rank() :: world]
    by_rank = each(work(own_items, **settings) if own_items else [])
    # Ranks took their items in turn: item number `place` is number `place // world` of rank `place % world`.
    return [by_rank[place % world][place // world] for place in range(len(items))]
