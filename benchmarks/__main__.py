"""All benchmarks that need no GPU, as Markdown in results/reference/speed/bench.md: `make bench`.

It does not compare versions of the demo, as `python -m benchmarks.demo --against COMMIT` does.
"""

import contextlib
import io
import os
import platform
import sys
import time
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import TextIO

from benchmarks import (
    cells,
    data,
    demo,
    laptop,
    launchers,
    methods,
    padding,
    peers,
    phases,
    rollout,
    startup,
    tokenstats,
    verify,
)
from harness.base.devices import processor

PAGE = Path(__file__).parents[1] / "results/reference/speed/bench.md"
BENCHMARKS = (
    rollout,
    phases,
    padding,
    methods,
    tokenstats,
    data,
    verify,
    launchers,
    startup,
    cells,
    demo,
    peers,
    laptop,
)
PACKAGES = ("torch", "transformers", "trl", "mlflow", "math-verify")


class Copied(io.TextIOBase):
    """An output that also keeps its text."""

    def __init__(self, output: TextIO) -> None:
        self.output, self.text = output, ""

    def write(self, text: str) -> int:
        self.text += text
        return self.output.write(text)

    def flush(self) -> None:
        self.output.flush()


def heading(load: float, minutes: float) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    machine = f"{processor()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    return (
        "# All benchmarks\n\n"
        f"`make bench` wrote this page on {date.today()}, in {minutes:.0f} minutes, from a load of {load:.1f} on.\n"
        f"{machine}; {versions}.\n\n"
        "[speed.md](../../../docs/speed.md) explains the figures, some of which are from other machines.\n"
    )


start, load = time.perf_counter(), os.getloadavg()[0]
with contextlib.redirect_stdout(Copied(sys.stdout)) as printed:
    for benchmark in BENCHMARKS:
        began = time.perf_counter()
        description, *_ = (benchmark.__doc__ or "").partition("\n\n")
        print(f"\n## {benchmark.__name__}\n\n{description.strip()}\n")
        benchmark.main()
        print(f"\nIt took {time.perf_counter() - began:.0f} s.", flush=True)
        PAGE.write_text(heading(load, (time.perf_counter() - start) / 60) + printed.text)
