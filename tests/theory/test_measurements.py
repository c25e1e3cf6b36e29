"""The tables and the words of docs/dynamics.md on what was measured equal results/reference/dynamics."""

from __future__ import annotations

import json
import re

from harness import config
from harness.theory import theory
from studies import pages
from studies.checks import Page, section

PAGE = Page("docs/dynamics.md")
MEASURED, LENS = (
    json.loads((pages.REFERENCE / f"dynamics/{name}.json").read_text()) for name in ("dynamics", "explain")
)
CHANGES = theory.entropy_changes(MEASURED["masks"])
QUADRANTS = ("positive_above", "positive_below", "negative_above", "negative_below")


def shown_rows(title: str) -> list[list[str]]:
    """Return the cells in each row of the tables of a section, without headings."""
    without_headings = re.sub(r"^\|.*\|\n\| ---.*\n", "", section(PAGE.path.read_text(), title), flags=re.MULTILINE)
    return [line.strip("| ").split(" | ") for line in without_headings.splitlines() if line.startswith("|")]


def test_tables_of_the_theorems() -> None:
    tables = {**MEASURED, "masks": CHANGES}
    expected = [[theory.cell_text(x) for x in row.values()] for rows in tables.values() for row in rows]
    assert shown_rows("The theorems, measured") == expected


def test_words_on_masks_of_one_quadrant() -> None:
    last = max(row["step"] for row in MEASURED["masks"])
    assert len({row["seed"] for row in MEASURED["masks"]}) == 3
    PAGE.states(f"{last} steps")
    lowering, raising = QUADRANTS[::3], QUADRANTS[1:3]
    assert {row["keep"] for row in CHANGES if row["highest"] < 0} == {"all", *lowering}
    assert {row["keep"] for row in CHANGES if row["lowest"] > 0} == {*raising}
    ends = [row["entropy"] for row in MEASURED["masks"] if row["step"] == last and row["keep"] in lowering]
    assert all(round(entropy, 1) == 0.1 for entropy in ends)


def test_words_on_steps_of_the_logits() -> None:
    by_alpha = {row["alpha"]: row for row in MEASURED["logit_steps"]}
    PAGE.states(f"to {100 * by_alpha[0.1]['error_first']:.0f} % up to steps of 0.1")
    assert by_alpha[1.0]["error_first"] > 1
    assert by_alpha[1.0]["error_second"] > 0.5


def test_words_on_steps_of_the_optimizer() -> None:
    off = {row["lr"]: abs(row["derivative"] / row["measured"] - 1) for row in MEASURED["optimiser_steps"]}
    PAGE.states(f"within {100 * max(off[lr] for lr in off if lr <= 3e-4):.0f} %")
    assert round(off[1e-3], 1) == 0.2
    assert round(off[3e-3] + 1) == 6
    train = config.load_config("demo").train
    assert (train.lr, train.updates, train.epochs) == (7e-4, 3, 1)


def test_words_on_corollaries() -> None:
    means = [row for row in MEASURED["corollaries"] if "contexts" not in row["what"]]
    on_policy, elsewhere, corrected = (row["mean"] / row["standard_error"] for row in means)
    assert abs(on_policy) < 1
    assert abs(corrected) < 1
    PAGE.states(f"{abs(elsewhere):.0f} standard errors")


MOMENTS = list(dict.fromkeys(row["moment"] for row in LENS))
METHODS = list(dict.fromkeys(row["method"] for row in LENS))
LENS_ROWS = {(row["moment"], row["method"], row["quadrant"]): row for row in LENS}


def test_table_of_methods_at_the_start() -> None:
    expected = []
    for method in METHODS:
        below = LENS_ROWS[MOMENTS[0], method, "negative_below"]
        cells = [method, f"{below['dropped']:.1%} x{below['size'] / below['plain_size']:.2f}"]
        for moment in MOMENTS:
            whole = LENS_ROWS[moment, method, "all"]
            cells += [f"{whole['predicted']:.5f}", f"{whole['predicted'] - whole['plain_predicted']:+.5f}"]
        expected.append(cells)
    assert shown_rows("The demo's methods at the start of training") == expected


def test_words_on_methods_at_the_start() -> None:
    first = MOMENTS[0]
    for quadrant in (*QUADRANTS, "rest"):
        PAGE.states(f"{LENS_ROWS[first, 'grpo', quadrant]['share']:.1%}")

    clip_b, clip_v = ({x: LENS_ROWS[first, clip, x]["dropped"] for x in QUADRANTS} for clip in ("clip_b", "clip_v"))
    assert not any(clip[quadrant] for clip in (clip_b, clip_v) for quadrant in QUADRANTS[:3])
    dropped = [f"{100 * clip['negative_below']:.0f} %" for clip in (clip_b, clip_v)]
    whole = {method: [LENS_ROWS[moment, method, "all"] for moment in MOMENTS] for method in METHODS}
    starts = [whole[clip][0] for clip in ("clip_b", "clip_v")]
    saved = [f"{100 * (1 - start['predicted'] / start['plain_predicted']):.0f} %" for start in starts]
    PAGE.states(f"{dropped[0]} and {dropped[1]} of the tokens", f"removes {saved[0]} and {saved[1]} of GRPO's")
    assert whole["ce_gppo"][0]["predicted"] == whole["grpo"][0]["predicted"]
    assert whole["ce_gppo"][1]["predicted"] < whole["grpo"][1]["predicted"]
