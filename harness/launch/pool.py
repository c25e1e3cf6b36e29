"""The GPUs of a machine, handed out to the cells that run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from harness.base.errors import UserError
from harness.config import Hardware


@dataclass(frozen=True)
class Taken:
    """GPUs that a cell has, or its part of one."""

    gpus: tuple[str, ...]
    share: Fraction


class Pool:
    """GPUs by the names that CUDA_VISIBLE_DEVICES takes, and what is free of each."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self.free = dict.fromkeys(gpus, Fraction(1))

    def take(self, hardware: Hardware) -> Taken | None:
        """Takes a GPU for each rank of a cell, or a part of the fullest one that has room for it; None where too few
        are free."""
        share = part(hardware)
        able = sorted((gpu for gpu, left in self.free.items() if left >= share), key=lambda gpu: self.free[gpu])
        if len(able) < hardware.ranks:
            return None
        for gpu in able[: hardware.ranks]:
            self.free[gpu] -= share
        return Taken(tuple(able[: hardware.ranks]), share)

    def give_back(self, taken: Taken) -> None:
        for gpu in taken.gpus:
            self.free[gpu] += taken.share

    def check(self, hardware: Hardware) -> None:
        if not room(len(self.free), hardware):
            raise UserError(
                f"hardware.ranks is {hardware.ranks}, and each needs a GPU of its own; here are {len(self.free)} "
                f"(allowed: up to that; more with hardware.nodes, or hardware.device=cpu)"
            )


def room(gpus: int, hardware: Hardware) -> int:
    """Returns how many cells so many GPUs have room for."""
    return int(1 / part(hardware)) * gpus if hardware.ranks == 1 else gpus // hardware.ranks


def part(hardware: Hardware) -> Fraction:
    """Returns the part of a GPU that a rank takes; by the decimal that was written."""
    return Fraction(str(hardware.share))
