"""The memory of this process and its peak since a moment, read from Linux."""

import ctypes
import gc
from pathlib import Path


def memory_mib(key: str) -> float:
    """Return a size of this process: VmRSS, or VmHWM, its largest since `forget_peak`."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) / 1024


def forget_peak() -> float:
    """Begin a new measurement of the peak; return the memory in use."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # otherwise freed memory that the allocator keeps would hide the next peak
    Path("/proc/self/clear_refs").write_text("5")
    return memory_mib("VmRSS")
