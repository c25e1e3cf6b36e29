"""Writes down how far a cell is while a process works on it, and why it ends."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from harness.base import files, ranks, standing
from harness.base.errors import CellFailure, UserError
from harness.record import lease, state
from harness.record.state import State

LOOK = 0.5  # seconds from one look at whether the launcher is there to the next
FAILED = "failed"  # a file beside the lease: one rank of this attempt has failed
ENDING = 10.0  # seconds for the rank that failed first to note its reason, by which all ranks are ended


class Diary:
    """Writes down how far a cell is while this process, or this rank, works on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.launcher = folder, os.getppid()
        self.started, self.earlier = time.monotonic(), State.known(folder).seconds

    @property
    def seconds(self) -> float:
        """Returns the seconds of work so far, over all lives of the cell."""
        return self.earlier + time.monotonic() - self.started

    @property
    def orphaned(self) -> bool:
        """Returns whether the process that started this one is gone, or the one that had it forked by a server."""
        launcher = multiprocessing.parent_process()
        return os.getppid() != self.launcher or (launcher is not None and not launcher.is_alive())

    def end_with_launcher(self) -> None:
        """Ends this process soon after its launcher, since nobody waits for it any more. What it was at is lost, and
        every file is whole."""

        def watch() -> None:
            while not self.orphaned:
                time.sleep(LOOK)
            print("stopped: the launcher is gone; the next run goes on from here", flush=True)
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()

    def end_when_still(self, room: Path, minutes: float) -> None:
        """Ends this process when no rank has come forward for so long; the log then tells where each thread is."""

        def end(who: str) -> None:
            faulthandler.dump_traceback(2)
            self.failed(f"{who} for {minutes:g} minutes (hardware.stall_minutes)")
            os._exit(1)

        threading.Thread(
            target=standing.here.watch, args=(room, ranks.number(), 60 * minutes, end), daemon=True
        ).start()

    def note(self, **changes: Any) -> None:
        if ranks.number() == 0:
            state.change(self.folder, **changes, seconds=self.seconds)

    def failed(self, reason: str, unless: Sequence[str] = ("done", "failed")) -> None:
        """Notes the reason of the first rank that fails: others then fail for want of it, as all do when stopped.

        Not where somebody else works on the cell by now.
        """
        with lease.briefly(self.folder) as ours:
            if ours and not self.orphaned and State.known(self.folder).state not in unless:
                state.change(self.folder, state="failed", reason=reason, seconds=self.seconds)

    def first_to_fail(self) -> bool:
        """Return whether no other rank has failed before this one."""
        room = files.rooms.get(self.folder)
        if room is None or not ranks.several():
            return True
        try:
            os.close(os.open(room / FAILED, os.O_CREAT | os.O_EXCL))  # which succeeds for one rank alone
        except FileExistsError:
            return False
        except FileNotFoundError:  # another process has taken the cell over
            return True
        return True

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.note(reason=text)


@contextmanager
def ending(note: Callable[[str], None], first: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """End this process at an error, with a reason that is noted before. Of several ranks only the first to fail gives
    its reason: the others meet the same fault, or miss that rank."""
    try:
        yield
    except Exception as error:  # whatever it is, it ends this cell alone
        if not first():
            time.sleep(ENDING)  # an exit code now would have the first rank killed before it has noted its reason
            sys.exit(1)
        note(reason := reason_of(error))
        sys.exit(f"failed: {reason}")


def reason_of(error: Exception) -> str:
    """Returns what people are told of an error, and where it came; of one that nobody foresaw the full story goes into
    the log."""
    where = f" (in {standing.here})" if str(standing.here) else ""
    if isinstance(error, CellFailure | UserError):
        return f"{error}{where}"
    traceback.print_exception(error)
    if lacks_memory(error):
        return f"out of memory{where}: {memory_peak()}; {MORE_MEMORY}"
    said = str(error).strip() or "no message"
    return f"{type(error).__name__}: {said.splitlines()[0]}{where}"


MORE_MEMORY = (
    "lower hardware.micro_tokens, set hardware.recompute=true or hardware.offload=true, or give it more hardware.ranks"
)


def lacks_memory(error: Exception) -> bool:
    # On a CPU torch raises what it raises for anything.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def memory_peak() -> str:
    """Returns the most memory that this process had at once."""
    if torch.cuda.is_initialized():
        return f"at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB of the GPU were in use"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB
    return f"at most {peak / 2**20:.1f} GiB were in use"
