"""The processes of a cell on a machine of a cluster; imports no torch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

from harness.base.processes import python_command


def torchrun_variables(rank: int, local: int, world: int, address: str, port: int) -> dict[str, str]:
    """Return the variables by which ranks find each other, as torchrun sets them; none for a single rank."""
    if world == 1:
        return {}
    numbers = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": world, "MASTER_PORT": port}
    return {"MASTER_ADDR": address, **{name: str(number) for name, number in numbers.items()}}


def start_rank(folder: str, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a rank of a cell. It ends with this process, even if this one is killed, because its stdin then closes.

    SIGUSR2 is blocked in it and in its children: SLURM sends that signal to every process of a job at once, and its
    default action would end a process without a handler.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        return subprocess.Popen(
            python_command("from harness.launch import cell", "cell.run_rank()", folder),
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a rank to stop after its current step, with a checkpoint; a request to rank 0 stops the whole cell."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has already ended
        process.stdin.write(b"\n")
        process.stdin.flush()
