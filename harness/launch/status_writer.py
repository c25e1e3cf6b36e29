"""The status of a cell's process: its state and reason of failure, and the cases in which it ends on its own."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from harness import ranks
from harness.base import files
from harness.base.errors import CellFailure, UserError
from harness.cells import lease, state
from harness.cells.lease import Heartbeat
from harness.cells.state import State
from harness.train import gpu_memory

LOOK = 0.5  # seconds between two checks whether the launcher still runs
FAILED = "failed"  # a file in the directory of the lease: a rank of this attempt has failed
ENDING = 10.0  # seconds for the first rank that fails to record its reason, after which all ranks are ended
MORE_MEMORY = (
    "lower hardware.micro_tokens, set hardware.recompute=true or hardware.offload=true, or give it more hardware.ranks"
)


class StatusWriter:
    """The writer of a cell's state in the process, or the rank, that works on the cell."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.launcher = folder, os.getppid()
        self.heartbeat = Heartbeat()
        self.started, self.before = time.monotonic(), State.known(folder)

    @property
    def seconds(self) -> float:
        """The seconds of work so far, over all processes that worked on the cell."""
        return self.before.seconds + time.monotonic() - self.started

    # What is written

    def note(self, **changes: Any) -> None:
        """Change fields of the cell's state; the first rank does it for all."""
        if ranks.own_rank() == 0:
            state.change(self.folder, **changes, seconds=self.seconds)

    def say(self, text: str) -> None:
        """Write to the log, and show it as the present activity of the cell."""
        print(text, flush=True)
        self.note(reason=text)

    def failed(self, reason: str) -> None:
        """Write that the cell failed, unless it is done, failed since, or another process works on it by now.

        The reason of the first rank that fails is kept: the other ranks fail because they miss it, or are stopped.
        """
        with lease.briefly(self.folder) as ours:
            now = State.known(self.folder)
            # A cell that torchrun starts is not prepared: an earlier failure may still be in its record.
            news = not now.ended or (now.state == "failed" and now == self.before)
            if ours and news and not self.orphaned:
                state.change(self.folder, state="failed", reason=reason, seconds=self.seconds)

    def first_to_fail(self) -> bool:
        """Return whether no other rank has failed before this one; True as well without a lease on the cell."""
        lease_dir = files.lease_dirs.get(self.folder)
        if lease_dir is None or not ranks.several():
            return True
        try:
            (lease_dir / FAILED).touch(exist_ok=False)  # succeeds for one rank alone
        except FileExistsError:
            return False
        except FileNotFoundError:  # another process has taken the cell over
            return True
        return True

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End this process with exit code 1 on any error, after its reason is written as `failed` does.

        Of several ranks only the first to fail gives its reason: the others meet the same fault, or miss that rank.
        """
        try:
            yield
        except Exception as error:  # any error: it ends only this cell, and the launcher continues with the others
            if not self.first_to_fail():
                time.sleep(ENDING)  # an exit now would have the first rank killed before its reason is recorded
                sys.exit(1)
            reason = self.reason_of(error)
            self.failed(reason)
            sys.exit(f"failed: {reason}")

    def reason_of(self, error: Exception) -> str:
        """Return an error as one sentence with its phase; the traceback of an unforeseen error goes to the log."""
        where = f" (in {self.heartbeat})" if str(self.heartbeat) else ""
        if isinstance(error, CellFailure | UserError):
            return f"{error}{where}"
        traceback.print_exception(error)
        if lacks_memory(error):
            return f"out of memory{where}: {memory_peak()}; {MORE_MEMORY}"
        message = str(error).strip() or "no message"
        return f"{type(error).__name__}: {message.splitlines()[0]}{where}"

    # When the process ends on its own

    @property
    def orphaned(self) -> bool:
        """True if the process that started this one is gone, or the process for which a server forked this one."""
        launcher = multiprocessing.parent_process()
        return os.getppid() != self.launcher or (launcher is not None and not launcher.is_alive())

    def end_with_launcher(self) -> None:
        """End this process soon after its launcher has ended.

        Work since the last checkpoint is lost; every file stays whole.
        """

        def watch() -> None:
            while not self.orphaned:
                time.sleep(LOOK)
            print("stopped: the launcher is gone; the next run continues from here", flush=True)
            os._exit(1)  # sys.exit would end only this thread

        threading.Thread(target=watch, daemon=True).start()

    def end_when_stalled(self, lease_dir: Path, minutes: float) -> None:
        """End this process if no rank makes progress for this long; the log then has the stack of each thread."""

        def end(who: str) -> None:
            faulthandler.dump_traceback(2)  # to stderr, which is the cell's log
            self.failed(f"{who} for {minutes:g} minutes (hardware.stall_minutes)")
            os._exit(1)

        arguments = (lease_dir, ranks.own_rank(), 60 * minutes, end)
        threading.Thread(target=self.heartbeat.watch, args=arguments, daemon=True).start()


def lacks_memory(error: Exception) -> bool:
    # On a CPU torch raises RuntimeError, as for anything else.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def memory_peak() -> str:
    """Return the largest amount of memory that this process used, as a phrase."""
    if torch.cuda.is_initialized():
        return gpu_memory.peak()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB
    return f"at most {peak / 2**20:.1f} GiB were in use"
