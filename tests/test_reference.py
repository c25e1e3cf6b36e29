"""The kept files of results/reference agree with one another, and with the transcript of the tutorial."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from places import REPOSITORY

from harness.table.verdict import significance, verdict
from studies import pages

FOLDERS = ("demo", "demo-avx2", "demo-tuned", "coloring")
BASELINES = ("grpo", "grpo(lr=3.5e-4)")


def with_interval(estimate: dict[str, float] | None, sign: str = "") -> str:
    """Return an estimate as the leaderboard shows it."""
    if estimate is None:
        return ""
    average, low, high = estimate["mean"], estimate["low"], estimate["high"]
    if low is None:
        return f"{average:{sign}.3f}"
    is_symmetric = high - average == pytest.approx(average - low)
    limits = f"±{high - average:.3f}" if is_symmetric else f"[{low:.3f}, {high:.3f}]"
    mark = ""
    if sign and low > 0:
        mark = " ▲"
    if sign and high < 0:
        mark = " ▼"
    return f"{average:{sign}.3f} {limits}{mark}"


def expected_row(row: dict[str, Any]) -> list[str]:
    """Return the cells of the leaderboard for one method."""
    differences = [with_interval(row["delta_to_baseline"], "+"), with_interval(row["delta_pass_at_k"]["16"], "+")]
    if row["method"] in BASELINES:
        differences = ["baseline", "baseline"]
    if "verdict" in row:  # tables that were made before have no such column
        differences.append(row["verdict"])
    scores = [with_interval(row["avg_at_k"]), with_interval(row["pass_at_k"]["16"])]
    others = [with_interval(row[key]) for key in ("right_distinct", "entropy_initial", "entropy_final")]
    return [row["method"], *scores, *differences, *others, f"{row['seeds_done']} of {row['seeds_expected']}"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_leaderboard_md_and_json_agree(folder: str) -> None:
    rows = json.loads((pages.REFERENCE / folder / "leaderboard.json").read_text())
    assert pages.reference_table(folder).to_numpy().tolist() == [expected_row(row) for row in rows]


@pytest.mark.parametrize("path", sorted(pages.REFERENCE.glob("*/compare.json")), ids=lambda path: path.parent.name)
def test_verdicts_follow_from_p_values(path: Path) -> None:
    by_row: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in json.loads(path.read_text()):
        by_row.setdefault((row["task"], row["model"], row["setting"], row["method"]), []).append(row)
    for average, headline in by_row.values():
        signs = []
        for row in (headline, average):
            assert (row is average) == (row["score"] == "Avg@K")
            signs.append(significance(row["difference"]["mean"], row["p_holm"]) if row["difference"] else 0)
        assert average["verdict"] == headline["verdict"] == verdict(*signs)


def test_transcript_of_the_tutorial_is_the_kept_output() -> None:
    tutorial = (REPOSITORY / "docs/tutorial.md").read_text()
    [shown] = re.findall(r"^```text\n(.*?)^```", tutorial, re.MULTILINE | re.DOTALL)
    seen = (pages.REFERENCE / "smoke/output.txt").read_text().split("\n\n", 1)[1]
    without_progress = re.sub(r"^\d+ of \d+ cells done, .*\n", "", seen, flags=re.MULTILINE)
    numbers = [re.findall(r"[+±-]?\d+(?:[.,]\d+)*|[▲▼]", text) for text in (shown, without_progress)]
    assert len(numbers[0]) > 20
    assert numbers[1][: len(numbers[0])] == numbers[0]
