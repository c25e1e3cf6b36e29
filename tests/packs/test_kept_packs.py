"""The packs of results/packs give the tables of results/reference: each number comes from counts that are kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import run_command
from places import REPOSITORY

PACKS = REPOSITORY / "results/packs"
REFERENCE = REPOSITORY / "results/reference"
TABLES = {path.stem: [path.stem] for path in PACKS.glob("*.zip")}
for study in ("field-tuned", "field-tuned-coloring"):  # a pack of all gains has the methods that the other pack lacks
    TABLES[f"{study}-all-gains"].insert(0, f"{study}-new-seeds")
QUICK = ("transfer-5m", "demo")
# The others take a minute together.
LONG = [pytest.param(table, marks=pytest.mark.long) for table in sorted(TABLES.keys() - set(QUICK))]


def numbers_of_rows(page: Path) -> list[list[str]]:
    """Return the scores and differences of the rows of a page's tables, sorted.

    Rows of two packs may come in another order, and kept tables of tuned methods name them by their options.
    """
    rows: list[list[str]] = []
    columns: list[int] = []
    for line in page.read_text().splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        if line.startswith("| method |"):
            names = [cell.strip() for cell in cells]
            columns = [place for place, name in enumerate(names) if name not in ("method", "options", "verdict")]
        elif line.startswith("| ") and not line.startswith("| ---"):
            rows.append([cells[place].strip() for place in columns])
    return sorted(rows)


@pytest.mark.slow
@pytest.mark.parametrize("table", [*QUICK, *LONG])
def test_leaderboard_of_the_kept_packs(table: str, tmp_path: Path) -> None:
    chosen = [argument for name in TABLES[table] for argument in ("--pack", str(PACKS / f"{name}.zip"))]
    run_command("leaderboard", *chosen, "--format", "md", "--out", str(tmp_path / "leaderboard.md"))
    kept = numbers_of_rows(REFERENCE / table / "leaderboard.md")
    assert kept
    assert numbers_of_rows(tmp_path / "leaderboard.md") == kept
