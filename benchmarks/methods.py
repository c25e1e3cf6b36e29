"""The cost of a method beside vanilla GRPO: whole training steps, interleaved, CPU seconds."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.common import show, trainer
from harness.tokens.metrics import Stopwatch

METHODS = ["grpo", "clip_b", "clip_v", "ce_gppo", "entropy_bonus", "adaptive_entropy", "ppo"]


def main(rounds: int = 12) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainers = {method: trainer(method, Path(folder)) for method in METHODS}
        seconds: dict[str, list[float]] = {method: [] for method in METHODS}
        for step in range(1, rounds + 1):
            for method in METHODS if step % 2 else reversed(METHODS):
                start = time.process_time()
                trainers[method].train_step(step, Stopwatch())
                seconds[method].append(time.process_time() - start)
    rows = []
    for method in METHODS:
        ratios = [mine / plain for mine, plain in zip(seconds[method][1:], seconds["grpo"][1:], strict=True)]
        rows.append([method, f"{statistics.median(seconds[method][1:]):.3f}", f"{statistics.median(ratios):.3f}"])
    show("One training step of the demo, median of rounds", ["method", "CPU s", "of GRPO"], rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
