"""The GPUs of this machine, and what a cell computes on; imports no torch."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Device:
    name: str
    memory: int | None  # bytes; None where it cannot be known


def cuda_devices(driver: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[Device, ...]:
    """By NVIDIA's own tool, else by the mark that its driver leaves."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return tuple(Device("a GPU", None) for _ in driver.glob("*/information"))
    rows = [line.rpartition(",") for line in lines if line.strip()]
    return tuple(Device(name.strip(), int(mib) * 2**20 if mib.strip().isdigit() else None) for name, _, mib in rows)


def gpus() -> list[str]:
    """Returns the GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes; of one that is cut into
    parts (MIG), its parts."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name for each in given.split(",") if (name := each.strip()) and name != "-1"]
    try:
        told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return [str(number) for number in range(len(cuda_devices()))]
    return listed(told)


def listed(told: str) -> list[str]:
    """Returns the UUIDs in what `nvidia-smi -L` says."""
    found: list[list[str]] = []
    for line in told.splitlines():
        if match := re.search(r"\(UUID: ([\w-]+)\)", line):
            if line.startswith("GPU"):
                found.append([match[1]])
            else:
                found[-1].append(match[1])
    return [name for gpu in found for name in gpu[1:] or gpu]


def resolve_device(wanted: str) -> str:
    """Return the device that `hardware.device` means on this machine: cuda or cpu, as torch would find it."""
    if wanted != "auto":
        return wanted
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return "cuda" if not hidden and usable() else "cpu"


@functools.cache
def usable() -> bool:
    """Returns whether there is a GPU, and a torch that was built for it."""
    return built_for_cuda() and bool(cuda_devices())


def built_for_cuda() -> bool:
    """By the text of torch's version.py: to import torch takes longer than to plan."""
    package = find_spec("torch")
    assert package is not None
    assert package.origin is not None
    text = Path(package.origin).with_name("version.py").read_text()
    return re.search(r"^cuda\b.*=\s*['\"]", text, re.MULTILINE) is not None
