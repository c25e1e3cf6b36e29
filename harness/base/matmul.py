"""How fast a CPU multiplies in bfloat16, measured once a machine.

With instructions for it, it takes a half to a quarter of the time of float32; a CPU without them emulates it, for which
up to 500 times as much was reported.
"""

from __future__ import annotations

import contextlib
import subprocess
from functools import cache
from importlib import metadata
from time import thread_time

from harness.base import devices, files, identities
from harness.base.errors import Damaged
from harness.base.processes import python_command

PAYS = 1.5  # times as fast; less is lost in casts
SECONDS = 0.1  # for each type


@cache
def bfloat16_speed() -> float:
    """Return how many times as fast as in float32 one core of this machine multiplies in bfloat16."""
    processor = f"{devices.processor()}\n{devices.instruction_sets()}"
    key = identities.key({"processor": processor, "torch": metadata.version("torch")})
    file = files.default_cache() / "machine" / f"{key}.json"
    try:
        return float(files.read_sealed(file)["bfloat16_speed"])
    except Damaged:  # missing, too
        speed = measured_apart()
    with contextlib.suppress(OSError):  # a cache that cannot be written: the next command measures again
        files.write_sealed(file, {"bfloat16_speed": speed})
    return speed


def measured_apart() -> float:
    """Measure in a process of its own: a plan imports no torch, and an instruction may be unknown to the processor."""
    command = python_command("from harness.base import matmul", "print(matmul.measure())")
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode < 0:  # ended by a signal
        return 0.0
    process.check_returncode()
    return round(float(process.stdout), 2)


def measure() -> float:
    """Return how many times as fast one thread of this process multiplies in bfloat16.

    Its own seconds count: on a busy machine, wall time is mostly that of others.
    """
    import torch

    torch.set_num_threads(1)
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        # As large as a layer of a small model, since emulation may take seconds.
        a, b = torch.ones(256, 576, dtype=dtype), torch.ones(576, 1536, dtype=dtype)
        times: list[float] = []
        while sum(times) < SECONDS:
            start = thread_time()
            torch.mm(a, b)
            times.append(thread_time() - start)
        seconds[dtype] = min(times)
    return seconds[torch.float32] / seconds[torch.bfloat16]
