"""How far each phase of a step of the demo is from the time of its matrix products alone.

    python -m benchmarks.phases

Every product of two matrices is counted: `mm`, `bmm`, `addmm`, and the fused attention. One thread; GRPO after some
steps, so that as many responses are equal as in most of the training. The profiler slows all operations, most of all
small ones, so the seconds of the phases without it are shown, too.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.common import demo_trainer, show
from harness.tokens.metrics import Stopwatch

PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::_scaled_dot_product")
MARK = "phase: "
METHOD = "grpo"


class MarkedStopwatch(Stopwatch):
    """A stopwatch whose phases are marked in the profile."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with super().phase(name), record_function(MARK + name):
            yield


def products_of(events: Any) -> tuple[dict[str, float], dict[str, int]]:
    """Return the seconds of matrix products, and the number of operations, of each phase."""
    phases = [event for event in events if event.name.startswith(MARK)]
    seconds: dict[str, float] = defaultdict(float)
    operations: dict[str, int] = defaultdict(int)
    for event in events:
        if not event.name.startswith("aten::"):
            continue
        for phase in phases:
            if phase.time_range.start <= event.time_range.start < phase.time_range.end:
                operations[phase.name] += event.self_cpu_time_total > 0
                if event.name.startswith(PRODUCTS):
                    seconds[phase.name] += event.self_cpu_time_total / 1e6
    return seconds, operations


def main(warm_up: int = 20, steps: int = 3) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = demo_trainer(METHOD, Path(folder), ["dynamics.every=0"])
        for step in range(1, warm_up + 1):
            trainer.train_step(step, Stopwatch())
        marked, plain = MarkedStopwatch(), Stopwatch()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for step in range(warm_up + 1, warm_up + steps + 1):
                trainer.train_step(step, marked)
        for step in range(warm_up + steps + 1, warm_up + 2 * steps + 1):
            trainer.train_step(step, plain)
    seconds, operations = products_of(profiler.events())
    rows = []
    for name in ("rollout", "stats", "update"):
        alone, whole, without = seconds[MARK + name], marked.seconds[f"time/{name}_s"], plain.seconds[f"time/{name}_s"]
        number = operations[MARK + name] // steps
        row = [f"{alone / steps:.3f}", f"{whole / steps:.3f}", f"{whole / alone:.1f}", f"{number:,}"]
        rows.append([name, *row, f"{without / steps:.3f}"])
    columns = ["phase", "products, s", "phase, s", "times products", "operations", "s without profiler"]
    show(f"A step of the demo, {METHOD} after {warm_up} steps, one thread", columns, rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
