"""The packs of results/packs give the tables of results/reference: each number comes from answers that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import REPOSITORY

from harness import cli

PACKS = REPOSITORY / "results/packs"
REFERENCE = REPOSITORY / "results/reference"
# The packs of each table whose folder is not named like its only pack. The answers of the first runs of the field and
# of its shortlist are lost, so the packs of these names hold the second runs.
OTHERS = {
    "field-again": ["field"],
    "field-coloring-again": ["field-coloring"],
    "field-shortlist-again": ["field-shortlist"],
    "field-shortlist-coloring-again": ["field-shortlist-coloring"],
    "field-tuned-more": ["field-tuned-new", "field-tuned-more"],
    "field-tuned-coloring-more": ["field-tuned-coloring-new", "field-tuned-coloring-more"],
}
ALONE = {path.stem for path in PACKS.glob("*.zip")} - {packs[-1] for packs in OTHERS.values()}
TABLES = OTHERS | {name: [name] for name in ALONE}
QUICK = ("transfer-5m", "demo")
# The others take a minute together.
LONG = [pytest.param(table, marks=pytest.mark.long) for table in sorted(TABLES.keys() - set(QUICK))]


def table_lines(page: Path) -> list[str]:
    """Return the lines of a page's tables, in alphabetical order: rows of two packs may come in another one."""
    return sorted(line for line in page.read_text().splitlines() if line.startswith("| "))


@pytest.mark.slow
@pytest.mark.parametrize("table", [*QUICK, *LONG])
def test_packs_give_the_kept_table(table: str, tmp_path: Path) -> None:
    chosen = [argument for name in TABLES[table] for argument in ("--pack", str(PACKS / f"{name}.zip"))]
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["leaderboard", *chosen, "--format", "md", "--out", str(tmp_path / "leaderboard.md")])
    assert table_lines(tmp_path / "leaderboard.md") == table_lines(REFERENCE / table / "leaderboard.md")
