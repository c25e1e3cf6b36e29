"""The machine that plans are made for: its cores, its memory, its disk, and its GPUs; imports no torch."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from harness.base.devices import Device, cuda_devices
from harness.base.shape import Shape
from harness.config import Config
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

    def gpu(self, ranks: int) -> int | None:
        """Bytes that each of so many processes finds on a GPU of its own; None where that cannot be known."""
        sizes = sorted((device.memory for device in self.devices if device.memory is not None), reverse=True)
        return sizes[min(ranks, len(sizes)) - 1] if sizes else None


def this_machine(config: Config) -> Machine:
    folder = config.folder.absolute()
    there = next(path for path in [folder, *folder.parents] if path.exists())
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(ram, os.cpu_count() or 1, shutil.disk_usage(there).free, cuda_devices())


def samples_with_vllm(shape: Shape | None, config: Config) -> bool:
    """As the cells of this configuration would here."""
    return choice.resolve(config.rollout.engine, config.hardware.device, shape) == "vllm"
