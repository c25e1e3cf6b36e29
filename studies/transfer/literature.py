"""Numbers that papers report; they enter no row, mean, interval or rank of a leaderboard."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from harness.base.errors import Damaged

LITERATURE = Path(__file__).parents[2] / "results/literature/reported.csv"
SCORES = ("avg", "pass")


@dataclass(frozen=True)
class ReportedNumber:
    """One number of a paper; results/literature/README.md describes the columns."""

    method: str
    name: str
    base_model: str
    task: str
    score: str
    k: int
    value: float  # percent
    baseline: str
    baseline_value: float
    arxiv: str
    table: str
    published: str
    note: str


def read_literature(path: Path) -> list[ReportedNumber]:
    """Return the reported numbers; refuse a file that does not follow its README."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [field.name for field in fields(ReportedNumber)]
    numbers = []
    for row in rows:
        if list(row) != columns:
            raise Damaged(path, f"its columns must be {', '.join(columns)}")
        try:
            converted: dict[str, Any] = {key: float(row[key]) for key in ("value", "baseline_value")}
            converted["k"] = int(row["k"])
        except (TypeError, ValueError) as error:
            raise Damaged(path, f"k, value and baseline_value must be numbers ({error})") from error
        if row["score"] not in SCORES:
            raise Damaged(path, f"score is {row['score']!r}; allowed: {', '.join(SCORES)}")
        numbers.append(ReportedNumber(**{**row, **converted}))
    return numbers
