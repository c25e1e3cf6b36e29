"""Several cells on few cores: seconds of a step of the demo alone, with other cells, and with other programs.

    python -m benchmarks.cells

OpenMP's threads wait for each other by spinning, unless `OMP_WAIT_POLICY=passive`, which `entrobench run` sets for its
cells: a cell with several threads that spin loses far more time to another program than that program's share of the
cores. A cell has one thread by default, which waits for no other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.common import demo_trainer, show
from harness.tokens.metrics import Stopwatch

BUSY = "while True: pass"
GO = "go\n"


@dataclass(frozen=True)
class Scene:
    """Cells and other programs that run at the same time."""

    cells: int = 1
    threads: int = 1
    busy: int = 0  # other programs, each of which keeps one core busy
    passive: bool = False  # the setting of cells that `entrobench run` starts


SCENES = {
    "one cell, one thread": Scene(),
    "two cells, one thread each": Scene(cells=2),
    "four cells, one thread each": Scene(cells=4),
    "one cell, two threads": Scene(threads=2),
    "one cell, two threads, passive": Scene(threads=2, passive=True),
    "two cells, two threads each": Scene(cells=2, threads=2),
    "two cells, two threads each, passive": Scene(cells=2, threads=2, passive=True),
    "one cell, one thread, one busy program": Scene(busy=1),
    "one cell, two threads, one busy program": Scene(threads=2, busy=1),
    "one cell, two threads, one busy program, passive": Scene(threads=2, busy=1, passive=True),
    "one cell, one thread, two busy programs": Scene(busy=2),
}


def train(threads: int, steps: int) -> None:
    """Train a cell after a line on standard input; print seconds and CPU seconds of its steps."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        trainer = demo_trainer("grpo", Path(folder), [f"hardware.threads={threads}"])
        trainer.train_step(1, Stopwatch())  # warms up
        print("ready", flush=True)
        sys.stdin.readline()
        before, watch = os.times(), Stopwatch()
        for step in range(2, steps + 2):
            trainer.train_step(step, watch)
        after = os.times()
    spent = after.user - before.user + after.system - before.system
    print(json.dumps([after.elapsed - before.elapsed, spent]))


def seconds_of(scene: Scene, steps: int) -> tuple[float, float]:
    """Return the seconds and CPU seconds of a step, as means over the cells."""
    command = [sys.executable, "-m", "benchmarks.cells", "--train", str(scene.threads), "--steps", str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": str(scene.threads)}
    if scene.passive:
        environment["OMP_WAIT_POLICY"] = "passive"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    cells = [subprocess.Popen(command, **pipes) for _ in range(scene.cells)]  # type: ignore[call-overload]
    for cell in cells:
        while cell.stdout.readline() != "ready\n":
            assert cell.poll() is None, "the cell ended before its first step"
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(scene.busy)]
    try:
        # All at once: the steps of cells that start one after the other would overlap only in part.
        waits = [threading.Thread(target=lambda cell=cell: results.append(cell.communicate(GO)[0])) for cell in cells]
        results: list[str] = []
        for wait in waits:
            wait.start()
        for wait in waits:
            wait.join()
    finally:
        for program in busy:
            program.kill()
            program.wait()
    of_cells = [json.loads(result) for result in results]
    seconds, spent = zip(*of_cells, strict=True)
    return statistics.mean(seconds) / steps, statistics.mean(spent) / steps


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cells")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--train", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.train:
        train(given.train, given.steps)
        return
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in SCENES}
    for _ in range(given.rounds):
        for name, scene in SCENES.items():
            measured[name].append(seconds_of(scene, given.steps))
    rows = []
    [alone, *_] = [min(seconds for seconds, _ in runs) for runs in measured.values()]
    for name, scene in SCENES.items():
        seconds, spent = min(measured[name])
        throughput = scene.cells * alone / seconds
        rows.append([name, f"{seconds:.2f}", f"{seconds / alone:.2f}", f"{throughput:.2f}", f"{spent:.2f}"])
    columns = ["", "s a step", "times alone", "cells' steps in that time", "CPU s a step of a cell"]
    show(f"Steps of the demo on {os.cpu_count()} cores, the shorter of {given.rounds} runs", columns, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
