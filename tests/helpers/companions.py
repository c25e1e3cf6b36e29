"""Processes that meet as ranks.

They are forked from a server that has imported the slow modules, once for all tests, and has computed nothing yet.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

from harness.launch import cell

Work = Callable[[int, Path], Any]


def on_ranks(work: Work, folder: Path, count: int = 2) -> list[Any]:
    """Run a module-level function on all ranks, with the rank's number and a folder; return its results by rank."""
    start(meet, work, folder, count, count=count)
    return [torch.load(result_path(folder, rank), weights_only=False) for rank in range(count)]


def result_path(folder: Path, rank: int) -> Path:
    return folder / f"result-{rank}.pt"


def start(main: Callable[..., None], *given: object, count: int = 2) -> None:
    """Run processes that meet on their own."""
    forkserver()
    start_processes(main, args=given, nprocs=count, start_method="forkserver")


def forkserver() -> ForkServerContext:
    """Return the context of the server that has imported the slow modules."""
    multiprocessing.set_forkserver_preload(["harness.launch.imports"])
    return multiprocessing.get_context("forkserver")


def meet(rank: int, work: Work, folder: Path, count: int) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    torch.save(work(rank, folder), result_path(folder, rank))
    dist.destroy_process_group()


def run_ranks(folder: Path, count: int = 2) -> int:
    """Run the ranks of a cell, as `cell.divide` does in new processes; return the first exit code that is not 0."""
    context = forkserver()
    meeting = folder.with_name(f"{folder.name}-meeting")
    processes = [
        context.Process(target=work_as_rank, args=(rank, count, folder, meeting), daemon=True) for rank in range(count)
    ]
    for process in processes:
        process.start()
    running, failed = processes, 0
    while running and not failed:
        wait([process.sentinel for process in running])
        ended = [process for process in running if process.exitcode is not None]
        failed = next(filter(None, [process.exitcode for process in ended]), 0)
        running = [process for process in running if process not in ended]
    for process in running:
        process.kill()
        process.join()
    meeting.unlink(missing_ok=True)
    return failed


def work_as_rank(rank: int, count: int, folder: Path, meeting: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    os.environ |= {"RENDEZVOUS": str(meeting), "GLOO_SOCKET_IFNAME": "lo"}
    cell.main(str(folder))


def write_process(path: Path) -> None:
    """Write the modules of this process, whether it searches for garbage, and how many objects it leaves out."""
    path.write_text(json.dumps([[*sys.modules], gc.isenabled(), gc.get_freeze_count()]))
