"""The processes of a cell on a machine of a cluster, started by what the cluster runs there; imports no torch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

from harness.base.processes import python_command


def meeting(rank: int, local: int, world: int, address: str, port: int) -> dict[str, str]:
    """Returns what tells a rank where the others are, as torchrun has it; nothing where it is alone."""
    if world == 1:
        return {}
    numbers = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": world, "MASTER_PORT": port}
    return {"MASTER_ADDR": address, **{name: str(number) for name, number in numbers.items()}}


def start(folder: str, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a rank of a cell, which ends when this process does, however it does: its stdin closes then.

    It never hears SIGUSR2, nor does a process that it starts: SLURM sends that to all of them at once, and it would end
    those that know nothing of it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        return subprocess.Popen(
            python_command("from harness import cell; cell.rank()", folder),
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    """Lets a rank, and with rank 0 its whole cell, stop after the step at hand, with a checkpoint."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended
        process.stdin.write(b"\n")
        process.stdin.flush()
