"""Numbers that papers report, shown below a leaderboard; they enter none of its rows, means, intervals or ranks."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from harness.base.errors import Damaged, UserError
from harness.table.render import as_markdown
from harness.table.verified import REPORTED
from harness.terminal import layout

# The repository keeps it; an installed package does not have it.
LITERATURE = Path(__file__).parents[2] / "results/literature/reported.csv"
SCORES = {"avg": "Avg", "pass": "Pass"}
TITLE = "Reported in papers, not measured here, and not part of any mean above"
HEADINGS = ["method", "mark", "base model", "task", "score", "%", "baseline", "baseline's %", "source"]
DROPPED_FIRST = [["baseline"], ["mark"]]  # in a narrow terminal; then columns from the last


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

    @property
    def source(self) -> str:
        """The paper, the place in it, and what the number was copied from."""
        return ", ".join(filter(None, (f"arXiv {self.arxiv}", self.table, self.note)))


def read_literature(path: Path) -> list[ReportedNumber]:
    """Return the reported numbers; refuse a file that does not follow its README."""
    if not path.exists():
        raise UserError(f"--literature reads {path}, which is part of the repository and not of an installed package")
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


def render_literature(tasks: Collection[str], how: str, width: int | None) -> str:
    """Return the reported numbers of some evaluation tasks as a table, or a sentence if there are none."""
    numbers = [number for number in read_literature(LITERATURE) if number.task in tasks]
    if not numbers:
        return f"No number in results/literature is about {' or '.join(sorted(tasks))}.\n"
    lines = literature_lines(numbers)
    if how == "md":
        return as_markdown(TITLE, lines)
    return layout.boxed(TITLE, lines, width, DROPPED_FIRST, "--format md")


def literature_lines(numbers: Sequence[ReportedNumber]) -> list[list[str]]:
    """Return the heading and a line for each number."""
    lines = [HEADINGS]
    for number in numbers:
        score = f"{SCORES[number.score]}@{number.k}"
        value, baseline_value = f"{number.value:.1f}", f"{number.baseline_value:.1f}"
        place = [number.name, REPORTED, number.base_model, number.task, score]
        lines.append([*place, value, number.baseline, baseline_value, number.source])
    return lines
