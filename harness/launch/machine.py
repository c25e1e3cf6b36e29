"""The machine that cells run on: its cores, memory and disk, and its GPUs, handed out to cells side by side."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from harness.base.devices import Device, cuda_devices, usable_cores
from harness.base.errors import UserError
from harness.base.units import exact, plural
from harness.config import Config, Hardware


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


def check_one_machine(hardware: Hardware) -> None:
    """Refuse several machines for a cell that one of them starts."""
    if hardware.nodes > 1:
        raise UserError(
            f"hardware.nodes is {hardware.nodes}; allowed: 1, since one machine starts this cell (others: --launcher "
            "ray or slurm, or torchrun)"
        )


# GPUs, by the names that CUDA_VISIBLE_DEVICES takes


def free_shares(gpus: Sequence[str], taken: Iterable[tuple[Sequence[str], Hardware]]) -> dict[str, Fraction]:
    """Return the free share of each GPU; `taken`: the GPUs of each running cell, with its hardware."""
    free = dict.fromkeys(gpus, Fraction(1))
    for of_cell, hardware in taken:
        for gpu in of_cell:
            free[gpu] -= exact(hardware.share)
    return free


def gpus_for(hardware: Hardware, free: Mapping[str, Fraction]) -> list[str] | None:
    """Return a GPU for each rank of a cell, or the fullest one with room for its share; None if too few are free."""
    gpus = [gpu for gpu, share in free.items() if share >= exact(hardware.share)]
    gpus.sort(key=lambda gpu: free[gpu])
    return gpus[: hardware.ranks] if len(gpus) >= hardware.ranks else None


def check_gpus(number: int, hardware: Hardware) -> None:
    """Refuse cells for which this machine has too few GPUs."""
    if not number:
        raise UserError("hardware.device is cuda, but this machine has no GPU that torch can use; use cpu")
    if not cells_on(number, hardware):
        raise UserError(
            f"hardware.ranks is {hardware.ranks}, and each rank needs its own GPU, but this machine has "
            f"{plural(number, 'GPU')} (allowed: up to that number; use hardware.nodes for more, or hardware.device=cpu)"
        )


def cells_on(gpus: int, hardware: Hardware) -> int:
    """Return the number of cells that this many GPUs have room for."""
    if hardware.ranks > 1:  # they have whole GPUs: config/checks.py refuses a share for them
        return gpus // hardware.ranks
    return int(1 / exact(hardware.share)) * gpus
