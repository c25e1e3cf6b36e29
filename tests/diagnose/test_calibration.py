"""The kept table of diagnoses: the demo's cells give it again, and docs/diagnose.md shows it."""

from __future__ import annotations

import pytest
from places import REPOSITORY

from harness.packs.archive import unpacked
from harness.table.verdict import COLLAPSED, EXPLODED, ending
from studies.diagnose.calibration import KEPT, LOST, PAGE, calibration_row, filled_page, finished_cells, kept_rows

ROWS = {row["cell"]: row for row in kept_rows()}


@pytest.mark.slow
def test_calibration_row_of_the_demo() -> None:
    with unpacked(REPOSITORY / "results/packs/demo.zip") as pack:
        rows = [calibration_row(folder) for folder in finished_cells([pack.folder / "cells"])]
    assert len(rows) == 35
    for row in rows:
        kept = ROWS[row.cell]
        assert (row.label, row.verdict, row.causes) == (kept["label"], kept["verdict"], kept["causes"])
        assert str(row.agrees) == kept["agrees"]
        for name in ("entropy_first", "entropy_last", "avg_before", "avg_after", "pass_16_before", "pass_16_after"):
            assert f"{getattr(row, name):.4f}" == kept[name]


def test_filled_page_is_the_page() -> None:
    text = PAGE.read_text()
    assert text == filled_page(text), "run `python -m studies.diagnose.calibration page`"


def test_collapsed_and_exploded_cells_are_those_of_the_leaderboard() -> None:
    for row in ROWS.values():
        expected = row["verdict"] if row["verdict"] in (COLLAPSED, EXPLODED) else None
        assert ending(float(row["entropy_first"]), float(row["entropy_last"])) == expected, row["settings"]


def test_kept_misses() -> None:
    misses = [row for row in ROWS.values() if row["agrees"] == "False"]
    late = [row for row in misses if (row["label"], row["verdict"]) == (LOST, "healthy")]
    others = {row["settings"] for row in misses if row not in late}
    assert others == {"demo: ce_gppo, seed 2", "demo: ce_gppo, seed 10", "lr-3: grpo, seed 3"}
    assert len(late) == 8
    for row in late:
        lost = 1 - float(row["pass_16_after"]) / float(row["pass_16_before"])
        assert 0.30 < lost < 0.48
        assert float(row["entropy_last"]) > 0.43 * float(row["entropy_first"])
    assert not [row for row in misses if row["label"] == KEPT]
