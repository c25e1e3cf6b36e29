"""The overlap of each evaluation set with the training set, measured and kept in the cards."""

from __future__ import annotations

from typing import Any

from harness.base.locks import lock
from tasks.data import overlap
from tasks.data.cache import card, find_card, folder, keep_card, problem_rows
from tasks.data.sets import SETS, TRAINED


def check_overlaps() -> dict[str, dict[str, Any]]:
    """Count the problems of each prepared evaluation set that are also in the training set, and update the cards."""
    trained, about = problem_rows(TRAINED, "train"), card(TRAINED)
    evaluated = {}
    for name in SETS:
        prepared = find_card(name)
        if prepared is not None and "test" in prepared["problems"]:
            evaluated[name] = problem_rows(name)
    # All sets are matched in one call, since the n-grams of the training set are counted only once.
    flat, evaluated_texts = [], []
    for name, rows in evaluated.items():
        for row in rows:
            flat.append((name, row))
            evaluated_texts.append(row["problem"])
    trained_texts = [row["problem"] for row in trained]
    matches_by_set: dict[str, list[overlap.Match]] = {name: [] for name in evaluated}
    for match in overlap.matches(evaluated_texts, trained_texts):
        set_name, _ = flat[match.evaluated]
        matches_by_set[set_name].append(match)
    results = {}
    for name, matches in matches_by_set.items():
        contained, near, pairs = set(), set(), []
        for match in matches:
            _, row = flat[match.evaluated]
            pairs.append([row["id"], trained[match.trained]["id"], round(match.share, 3)])
            near.add(match.evaluated)
            if match.contained:
                contained.add(match.evaluated)
        results[name] = {
            "fingerprint": about["fingerprint"],
            "problems": len(evaluated[name]),
            "contained": len(contained),
            "near": len(near),
            "pairs": pairs,
        }
        with lock(folder() / f"{name}.lock"):
            updated = card(name)
            updated["overlap"][TRAINED] = results[name]
            keep_card(updated)
    return results


def flags(name: str) -> list[str]:
    """Return warnings about this set's overlap with the training set; an empty list if there is none."""
    about, trained = card(name), find_card(TRAINED)
    if trained is None or "test" not in about["problems"]:
        return []
    measured = about["overlap"].get(TRAINED)
    if measured is None or measured["fingerprint"] != trained["fingerprint"]:
        return [f"overlap with {TRAINED} unknown; run `entrobench data check`"]
    if not measured["near"]:
        return []
    numbers = f"{measured['near']} of {measured['problems']} problems are also in {TRAINED}"
    return [f"contaminated: {numbers}, {measured['contained']} of them word for word"]
