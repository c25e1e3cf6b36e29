"""The memory of a GPU as torch's allocator counts it.

The allocator goes on counting the weights and the cache of a vLLM engine that sleeps: they are in a pool of their own,
whose memory vLLM gives back to the driver alone.
"""

from __future__ import annotations

import torch

ORDINARY = (0, 0)  # the number of torch's own pool


def bytes_of_engine() -> int:
    """Return the bytes in pools of their own, awake or asleep."""
    segments = torch.cuda.memory_snapshot()
    return sum(segment["allocated_size"] for segment in segments if tuple(segment["segment_pool_id"]) != ORDINARY)


def limit(share: float) -> None:
    """Limit this process to a share of its GPU, beside an engine, which must be there already to be counted."""
    size = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(share + bytes_of_engine() / size, 1.0))


def peak() -> str:
    """Return the most memory that this process used, as a phrase."""
    engine = bytes_of_engine()
    most = f"at most {(torch.cuda.max_memory_allocated() - engine) / 2**30:.1f} GiB of the GPU were in use"
    return f"{most} beside the {engine / 2**30:.1f} GiB of the engine" if engine else most
