"""Wall time of the demo from the first cell to the leaderboard, fixed cost of a cell, and shares of the phases."""

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


def phase_seconds(folder: Path) -> dict[str, float]:
    """Return the seconds that a cell has logged for each phase."""
    totals: dict[str, float] = {}
    for line in MetricsLog(folder).read():
        for key, value in line["metrics"].items():
            if key.startswith("time/"):
                totals[key] = totals.get(key, 0.0) + value
    return totals


def main(*overrides: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"results={folder}", *overrides]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "harness.cli", "run", "demo", *settings], check=True)
        wall = time.perf_counter() - start
        cells = matrix.cells(config.load("demo", settings))
        phases: dict[str, list[float]] = {}  # seconds in each cell that has the phase
        fixed_costs = []
        for cell in cells:
            totals = phase_seconds(cell.folder)
            for key, seconds in totals.items():
                phases.setdefault(key, []).append(seconds)
            # From the launch, which writes config.yaml, to the end, which writes state.json.
            launched, ended = cell.folder / "config.yaml", cell.folder / "state.json"
            lifetime = ended.stat().st_mtime - launched.stat().st_mtime
            fixed_costs.append(lifetime - sum(totals.values()))
    rows = [
        [f"wall time of {len(cells)} cells", f"{wall:.0f} s"],
        ["fixed cost of a cell, median", f"{median(fixed_costs):.1f} s"],
        ["of the first, imports included", f"{max(fixed_costs):.1f} s"],
    ]
    all_phases = sum(map(sum, phases.values()))
    for key, values in sorted(phases.items(), key=lambda item: -sum(item[1])):
        name = key.removeprefix("time/").removesuffix("_s")
        rows.append([f"{name}, a cell that has it", f"{mean(values):.1f} s ({sum(values) / all_phases:.0%} of all)"])
    show("The demo", ["", ""], rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
