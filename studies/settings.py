"""How a method's scores differ between the settings of an axis, paired by seed and problem.

    python -m studies.settings dynamic-sampling train.resample.max_batches results=results

A leaderboard compares methods within a setting. This compares each value of the axis with the first one, for each
method and each setting of the other axes, and writes the table to results/reference.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from harness import config, matrix
from harness.cells.evaluations import pass_at_k
from harness.cells.log import MetricsLog
from harness.matrix import Cell
from harness.table.statistics import difference_interval
from studies.field import analysis as field
from studies.overtaking.analysis import right_counts

REFERENCE = Path(__file__).parent.parent / "results/reference"

Floats = NDArray[np.float64]
# Axes: S seed, J problem.


def scores(cells: list[Cell]) -> tuple[Floats, Floats]:
    """Return Avg@K and the headline Pass@K after training, for the cells of all seeds."""
    counts = []
    for cell in cells:
        last = MetricsLog(cell.folder).read()[-1]["step"]
        counts.append(right_counts(cell.folder, last))
    settings = cells[0].config.eval.of(cells[0].task)
    counts_SJ = np.array(counts)
    return counts_SJ / settings.samples, pass_at_k(settings.samples, counts_SJ, settings.k)


def shown_difference(x_SJ: Floats) -> str:
    return field.shown_difference({"difference": asdict(difference_interval(x_SJ))})


def differences(cells: list[Cell], axis: str) -> DataFrame:
    """Return the paired differences of each value of an axis to the first one."""
    rows: dict[tuple[str, ...], dict[str, list[Cell]]] = {}  # by method and the other axes, then by value
    for cell in cells:
        setting = {key: str(value) for key, value in cell.config.setting.items()}
        value = setting.pop(axis)
        rows.setdefault((cell.method, *setting.values()), {}).setdefault(value, []).append(cell)
    others = [key for key in cells[0].config.setting if key != axis]
    lines = []
    for place, by_value in rows.items():
        first, *further = by_value
        average_SJ, passed_SJ = scores(by_value[first])
        for value in further:
            other_average_SJ, other_passed_SJ = scores(by_value[value])
            k = cells[0].config.eval.of(cells[0].task).k
            line = dict(zip(["method", *others], place, strict=True))
            line[axis] = f"{value} - {first}"
            line["Avg@K"] = shown_difference(other_average_SJ - average_SJ)
            line[f"Pass@{k}"] = shown_difference(other_passed_SJ - passed_SJ)
            lines.append(line)
    return DataFrame(lines)


def main(name: str, axis: str, *overrides: str) -> None:
    cells = matrix.cells(config.load_config(name, overrides))
    table = differences(cells, axis)
    table.to_csv(REFERENCE / name / f"{axis.rpartition('.')[2]}.csv", index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
