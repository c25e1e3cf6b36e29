"""The processor, the cores and the GPUs that this process may use, and the device of a cell; imports no torch."""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from pathlib import Path, PurePosixPath

from harness.base.errors import UserError

BFLOAT16 = (8, 0)  # the compute capability from which on GPUs compute in it; earlier ones emulate it
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Device:
    name: str
    memory: int | None  # bytes; None if unknown
    capability: tuple[int, int] | None = None  # the compute capability; None if unknown


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its affinity, the quotas of its cgroups and SLURM."""
    limits = [len(os.sched_getaffinity(0)), *cpu_quotas(CGROUPS, OWN_CGROUP)]
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        value = os.environ.get(name, "")
        if value.isdigit():
            limits.append(int(value))
    return max(int(min(limits)), 1)


def processor_lines() -> list[str]:
    """Return the lines of the system's description of the processors; none where it has no such file."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []


def processor() -> str:
    """Return the name of the CPU, or its architecture where the system does not say."""
    for line in processor_lines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def instruction_sets() -> str:
    """Return what the CPU can compute, which its name does not say on a virtual machine."""
    return "\n".join(sorted({line for line in processor_lines() if line.startswith(("flags", "Features"))}))


def available_memory() -> int:
    """Return the bytes of main memory that programs may still take; all of it where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists() and (found := re.search(r"MemAvailable: +(\d+) kB", meminfo.read_text("utf-8"))):
        return int(found[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_room(purpose: str, folder: Path, *, disk: int, memory: int) -> None:
    """Raise UserError unless this many bytes are free at a folder and in main memory."""
    for what, needed, free in (
        (f"disk are needed at {folder}", disk, shutil.disk_usage(folder).free),
        ("memory are needed", memory, available_memory()),
    ):
        if free < needed:
            # Rounded apart, so that the two are never equal.
            raise UserError(f"to {purpose}, {ceil(needed / 1e6):,} MB of {what}, and {int(free / 1e6):,} MB are free")


def cpu_quotas(mount: Path, own: Path) -> Iterator[float]:
    """Yield the quotas, in cores, of the cgroups of a process and of all around them; `own` is its /proc/PID/cgroup."""
    memberships = own.read_text("utf-8").splitlines() if own.exists() else []
    for line in memberships:
        _, controllers, name = line.split(":", 2)
        inner = PurePosixPath(name.strip("/"))
        for place in (inner, *inner.parents):  # the last one is the mount, which in a container is its own cgroup
            if not controllers:  # version 2
                path = mount / place / "cpu.max"
                quota, _, period = path.read_text("utf-8").partition(" ") if path.exists() else ("max", "", "")
            elif "cpu" in controllers.split(","):
                path = mount / "cpu" / place / "cpu.cfs_quota_us"
                quota = path.read_text("utf-8") if path.exists() else "-1"
                period = path.with_name("cpu.cfs_period_us").read_text("utf-8") if path.exists() else ""
            else:
                continue
            if quota.strip() not in ("max", "-1"):
                yield int(quota) / int(period)


def cuda_devices(driver: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[Device, ...]:
    """Return the GPUs that nvidia-smi lists; without that tool, one without a name for each that the driver lists."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return tuple(Device("a GPU", None) for _ in driver.glob("*/information"))
    listed = []
    for line in filter(str.strip, lines):
        name, mib, version = line.rsplit(",", 2)
        memory = int(mib) * 2**20 if mib.strip().isdigit() else None
        capability = re.fullmatch(r"(\d+)\.(\d+)", version.strip())
        listed.append(Device(name.strip(), memory, (int(capability[1]), int(capability[2])) if capability else None))
    return tuple(listed)


def bfloat16_obstacle(cards: Sequence[Device]) -> str | None:
    """Return why none of these GPUs computes in bfloat16, in one sentence; None if one does, or may."""
    if not cards or any(card.capability is None or card.capability >= BFLOAT16 for card in cards):
        return None
    name, needed = cards[0].name, ".".join(map(str, BFLOAT16))
    return f"{name} does not compute in bfloat16, which takes compute capability {needed}; set train.dtype=float32"


def gpus() -> list[str]:
    """Return the GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes.

    A GPU that is partitioned (MIG) counts as its partitions.
    """
    visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_devices is not None:
        names = [entry.strip() for entry in visible_devices.split(",")]
        return [name for name in names if name not in ("", "-1")]
    try:
        output = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return [str(number) for number in range(len(cuda_devices()))]
    return parse_gpu_list(output)


def parse_gpu_list(output: str) -> list[str]:
    """Return the UUIDs that `nvidia-smi -L` prints: of each GPU its own, or those of its partitions."""
    gpus_with_parts: list[list[str]] = []
    for line in output.splitlines():
        if match := re.search(r"\(UUID: ([\w-]+)\)", line):
            if line.startswith("GPU"):
                gpus_with_parts.append([match[1]])
            else:  # an indented line is a partition of the GPU above it
                gpus_with_parts[-1].append(match[1])
    return [uuid for gpu, *parts in gpus_with_parts for uuid in parts or [gpu]]


def resolve_device(wanted: str) -> str:
    """Return the device that `hardware.device` means on this machine: cuda or cpu, as torch would find it."""
    if wanted != "auto":
        return wanted
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return "cuda" if not hidden and usable() else "cpu"


@functools.cache
def usable() -> bool:
    """Return whether there is a GPU, and a torch that was built for it."""
    return built_for_cuda() and bool(cuda_devices())


def built_for_cuda() -> bool:
    """Return whether torch was built for CUDA, by the text of its version.py: importing it takes longer than a plan."""
    package = find_spec("torch")
    assert package is not None
    assert package.origin is not None
    text = Path(package.origin).with_name("version.py").read_text("utf-8")
    return re.search(r"^cuda\b.*=\s*['\"]", text, re.MULTILINE) is not None
