"""The tables and the words of docs/dynamics.md on what was measured equal results/reference/dynamics."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from harness import config
from studies import pages
from studies.checks import Page, section

PAGE = Page("docs/dynamics.md")
MEASURED, LENS = (
    json.loads((pages.REFERENCE / f"dynamics/{name}.json").read_text()) for name in ("dynamics", "explain")
)
QUADRANTS = ("positive_above", "positive_below", "negative_above", "negative_below")


def numbers(text: str) -> list[str]:
    """Return the numbers of a text with their signs."""
    return re.findall(r"[+-]?\d+(?:[.,]\d+)*(?:e[+-]\d+)?", text)


def shown_rows(title: str) -> list[list[str]]:
    """Return the numbers in each row of the tables of a section, without headings."""
    text = section(PAGE.path.read_text(), title)
    without_headings = re.sub(r"^\|.*\|\n\| ---.*\n", "", text, flags=re.MULTILINE)
    return [numbers(line) for line in without_headings.splitlines() if line.startswith("|")]


def short(number: Any) -> str:
    return f"{number:.4g}"


def mask_changes() -> dict[str, list[float]]:
    """Return the change of the entropy from the first to the last step by the tokens kept, one for each seed."""
    entropies = {(row["keep"], row["seed"], row["step"]): row["entropy"] for row in MEASURED["masks"]}
    steps = [step for _, _, step in entropies]
    changes: dict[str, list[float]] = {}
    for keep, seed, step in entropies:
        if step == min(steps):
            change = entropies[keep, seed, max(steps)] - entropies[keep, seed, step]
            changes.setdefault(keep, []).append(change)
    return changes


def theory_rows() -> list[str]:
    """Return the rows of the tables of measurements."""
    rows = []
    for changes in mask_changes().values():
        rows.append(" ".join(map(short, (np.mean(changes), min(changes), max(changes)))))
    columns_of = {
        "logit_steps": ("alpha", "slope", "correlation", "error_first", "error_second"),
        "optimiser_steps": ("lr", "measured", "derivative", "token_wise", "correlation"),
        "corollaries": ("what", "mean", "standard_error"),
    }
    for name, (first, *columns) in columns_of.items():
        for row in MEASURED[name]:
            rows.append(" ".join([str(row[first]), *(short(row[column]) for column in columns)]))
    for row in MEASURED["overhead"]:
        rows.append(" ".join([f"{row['vocabulary']:,}", *(short(row[key]) for key in ("logp_s", "all_s", "ratio"))]))
    return rows


def test_tables_of_the_theorems() -> None:
    assert shown_rows("The theorems, measured") == [numbers(row) for row in theory_rows()]


def test_words_on_masks_of_one_quadrant() -> None:
    changes = mask_changes()
    last = max(row["step"] for row in MEASURED["masks"])
    assert len({row["seed"] for row in MEASURED["masks"]}) == 3
    PAGE.states(f"{last} steps")
    lowering, raising = QUADRANTS[::3], QUADRANTS[1:3]
    assert all(max(changes[quadrant]) < 0 for quadrant in lowering)
    assert all(min(changes[quadrant]) > 0 for quadrant in raising)
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


def test_words_on_corollaries_and_overhead() -> None:
    means = [row for row in MEASURED["corollaries"] if "contexts" not in row["what"]]
    on_policy, elsewhere, corrected = (row["mean"] / row["standard_error"] for row in means)
    assert abs(on_policy) < 1
    assert abs(corrected) < 1
    PAGE.states(f"{abs(elsewhere):.0f} standard errors")
    ratios = [row["ratio"] for row in MEASURED["overhead"]]
    assert max(ratios) - min(ratios) < 0.02


MOMENTS = list(dict.fromkeys(row["moment"] for row in LENS))
METHODS = list(dict.fromkeys(row["method"] for row in LENS))
LENS_ROWS = {(row["moment"], row["method"], row["quadrant"]): row for row in LENS}


def lens_rows() -> list[str]:
    """Return the rows of the tables that compare each method with GRPO."""
    rows = []
    for moment in MOMENTS:
        for method in METHODS:
            quadrants = [LENS_ROWS[moment, method, quadrant] for quadrant in QUADRANTS]
            cells = [f"{row['dropped']:.1%} x{row['size'] / row['plain_size']:.2f}" for row in quadrants]
            whole = LENS_ROWS[moment, method, "all"]
            change = whole["predicted"] - whole["plain_predicted"]
            rows.append(" ".join([*cells, f"{whole['predicted']:.5f}", f"{change:+.5f}"]))
    return rows


def test_tables_of_methods_at_the_start() -> None:
    assert shown_rows("The demo's methods at the start of training") == [numbers(row) for row in lens_rows()]


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
