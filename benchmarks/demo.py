"""The demo from the first cell to the leaderboard: wall time, the fixed cost of a cell, the share of each phase."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median

from benchmarks.common import show
from harness import config, matrix
from harness.cells.log import MetricsLog


def main(*overrides: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"results={folder}", *overrides]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "harness.cli", "run", "demo", *settings], check=True)
        wall = time.perf_counter() - start
        cells = matrix.cells(config.load("demo", settings))
        phases: dict[str, list[float]] = {}
        fixed = []
        for cell in cells:
            totals: dict[str, float] = {}
            for line in MetricsLog(cell.folder).read():
                for key, value in line["metrics"].items():
                    if key.startswith("time/"):
                        totals[key] = totals.get(key, 0.0) + value
            for key, value in totals.items():
                phases.setdefault(key, []).append(value)
            # From the moment it was launched to the moment it was done, less what the phases account for.
            alive = Path(cell.folder / "state.json").stat().st_mtime - Path(cell.folder / "config.yaml").stat().st_mtime
            fixed.append(alive - sum(totals.values()))
    rows = [[f"wall time of {len(cells)} cells", f"{wall:.0f} s"]]
    rows += [
        ["fixed cost of a cell, median", f"{median(fixed):.1f} s"],
        ["of the first, imports included", f"{max(fixed):.1f} s"],
    ]
    whole = sum(map(sum, phases.values()))
    rows += [
        [
            f"{key.removeprefix('time/').removesuffix('_s')}, a cell that has it",
            f"{mean(values):.1f} s ({sum(values) / whole:.0%} of all)",
        ]
        for key, values in sorted(phases.items(), key=lambda item: -sum(item[1]))
    ]
    show("The demo", ["", ""], rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
