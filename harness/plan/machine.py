"""The machine that plans are made for: its cores, its memory, its disk, and its GPUs; imports no torch."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from harness.base.shape import Shape
from harness.config import Config, Hardware
from harness.dist.devices import Device, cuda_devices
from harness.launch.pool import room
from harness.rollout import choice


@dataclass(frozen=True)
class Machine:
    ram: int
    cores: int
    free: int  # bytes of disk where results go
    devices: tuple[Device, ...] = ()

    def kind(self, config: Config) -> str:
        """Returns what the cells of this configuration would compute on: cuda or cpu."""
        wanted = config.hardware.device
        return wanted if wanted != "auto" else "cuda" if self.devices else "cpu"

    def at_once(self, config: Config) -> int:
        """Returns how many cells of this configuration run side by side: as many as there are GPUs for, or cores."""
        hardware = config.hardware
        if self.kind(config) == "cuda":
            return max(room(len(self.devices), hardware), 1)
        return max(self.cores // (hardware.threads * hardware.ranks), 1)

    def gpu(self, hardware: Hardware) -> int | None:
        """Returns the bytes that each rank of a cell finds on its GPU, or on its part of one; None where that cannot be
        known."""
        sizes = sorted((device.memory for device in self.devices if device.memory is not None), reverse=True)
        return int(hardware.share * sizes[min(hardware.ranks, len(sizes)) - 1]) if sizes else None


def this_machine(config: Config) -> Machine:
    folder = config.folder.absolute()
    there = next(path for path in [folder, *folder.parents] if path.exists())
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(ram, os.cpu_count() or 1, shutil.disk_usage(there).free, cuda_devices())


def samples_with_vllm(shape: Shape | None, config: Config) -> bool:
    """As the cells of this configuration would here."""
    return choice.resolve_engine(config.rollout.engine, config.hardware.device, shape) == "vllm"
