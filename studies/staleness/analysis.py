"""What the study of staleness needs besides its leaderboard: ends of the ranges, and the effective sample size.

    python -m studies.staleness.analysis results=results

The area under the curve is the chance that the lowest effective sample size of a cell that collapsed is below that of
one that did not; a collapse is a Pass@16 below half of the base model's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas
from pandas import DataFrame

from harness import config, matrix
from harness.cells.log import MetricsLog
from harness.matrix import Cell
from studies import settings

STUDY = "staleness"
REFERENCE = Path(__file__).parents[2] / "results/reference" / STUDY
UPDATES, LAG = "train.updates", "rollout.lag"
SIZES = ("mismatch/token_ess", "mismatch/sequence_ess")
COLLAPSED = 0.5  # of the base model's Pass@16


def ends_of_ranges(cells: Sequence[Cell]) -> DataFrame:
    """Return the difference of the highest to the lowest value of each axis, the other one at its lowest."""
    parts = []
    for axis, other in ((UPDATES, LAG), (LAG, UPDATES)):
        table = settings.differences(list(cells), axis)
        lowest = str(cells[0].config.axes[other][0])
        highest = f"{cells[0].config.axes[axis][-1]} - {cells[0].config.axes[axis][0]}"
        part = table[(table[other] == lowest) & (table[axis] == highest)]
        part = part.rename(columns={axis: "difference"}).drop(columns=other)
        part.insert(1, "setting", axis)
        parts.append(part)
    return pandas.concat(parts)


def area_under_curve(lower: Sequence[float], higher: Sequence[float]) -> float:
    """Return the chance that a number of the first kind is below one of the second; equal numbers count as half."""
    wins = [0.5 * (low == high) + (low < high) for low, high in product(lower, higher)]
    return float(np.mean(wins))


def sample_sizes(cells: Sequence[Cell]) -> DataFrame:
    """Return each cell's lowest effective sample sizes, and whether it collapsed."""
    lines = []
    for cell in cells:
        log = [line["metrics"] for line in MetricsLog(cell.folder).read()]
        k = cell.config.eval.of(cell.task).k
        passed = [metrics[name] for metrics in log if (name := f"eval/{cell.task}/pass@{k}") in metrics]
        line: dict[str, object] = {"method": cell.method, "seed": cell.seed, **cell.config.setting}
        for name in SIZES:
            line[name] = min(metrics[name] for metrics in log if name in metrics)
        lines.append(line | {"collapsed": passed[-1] < COLLAPSED * passed[0]})
    return DataFrame(lines)


def main(*overrides: str) -> None:
    cells = matrix.cells(config.load_config(STUDY, overrides))
    ends = ends_of_ranges(cells)
    ends.to_csv(REFERENCE / "ends.csv", index=False)
    print(ends.to_string(index=False))
    sizes = sample_sizes(cells)
    sizes.to_csv(REFERENCE / "sample_sizes.csv", index=False, float_format="%.6g")
    collapsed, others = sizes[sizes["collapsed"]], sizes[~sizes["collapsed"]]
    print(f"{len(collapsed)} of {len(sizes)} cells collapsed")
    for name in SIZES:
        area = area_under_curve(collapsed[name].tolist(), others[name].tolist())
        print(f"{name}: area under the curve {area:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
