"""The machine that a plan is for: cores, memory, disk and GPUs; imports no torch."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from harness.base.devices import Device, cuda_devices, usable_cores
from harness.config import Config, Hardware
from harness.launch.machine import cells_on


@dataclass(frozen=True)
class Machine:
    ram: int  # bytes
    cores: int  # that this process may use
    free: int  # bytes on the disk of the results
    devices: tuple[Device, ...] = ()

    def at_once(self, config: Config) -> int:
        """Return how many cells of this settled configuration run side by side: as many as GPUs or cores allow."""
        hardware = config.hardware
        if hardware.device == "cuda":
            return max(cells_on(len(self.devices), hardware), 1)
        return max(self.cores // (hardware.threads * hardware.ranks), 1)

    def gpu(self, hardware: Hardware) -> int | None:
        """Return the bytes of each rank's GPU, or of its share of one; None if that is unknown."""
        sizes = sorted((device.memory for device in self.devices if device.memory is not None), reverse=True)
        if not sizes:
            return None
        # The ranks of a cell take the largest GPUs, and the smallest of these limits them all.
        return int(hardware.share * sizes[min(hardware.ranks, len(sizes)) - 1])


def this_machine(config: Config) -> Machine:
    folder = config.folder.absolute()
    there = next(path for path in [folder, *folder.parents] if path.exists())
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(ram, usable_cores(), shutil.disk_usage(there).free, cuda_devices())
