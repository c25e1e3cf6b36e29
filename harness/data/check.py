"""How much of each evaluation set stands in the training set."""

from __future__ import annotations

from typing import Any

from harness.base.locks import lock
from harness.data import overlap
from harness.data.cache import card, find_card, folder, keep_card, rows
from harness.data.sets import SETS, TRAINED


def check() -> dict[str, dict[str, Any]]:
    """Counts how much of each prepared evaluation set stands in the training set, and keeps it in the cards."""
    trained, about = rows(TRAINED, "train"), card(TRAINED)
    tested = {name: rows(name) for name in SETS if "test" in (find_card(name) or {"problems": ()})["problems"]}
    flat = [(name, row) for name, part in tested.items() for row in part]
    found: dict[str, list[overlap.Match]] = {name: [] for name in tested}
    for match in overlap.matches([row["problem"] for _, row in flat], [row["problem"] for row in trained]):
        found[flat[match.evaluated][0]].append(match)
    results = {}
    for name, matches in found.items():
        results[name] = {
            "fingerprint": about["fingerprint"],
            "problems": len(tested[name]),
            "contained": len({match.evaluated for match in matches if match.contained}),
            "near": len({match.evaluated for match in matches}),
            "pairs": [[flat[m.evaluated][1]["id"], trained[m.trained]["id"], round(m.share, 3)] for m in matches],
        }
        with lock(folder() / f"{name}.lock"):
            evaluated = card(name)
            evaluated["overlap"][TRAINED] = results[name]
            keep_card(evaluated)
    return results


def flags(name: str) -> list[str]:
    """Returns what readers of results must know of this set's overlap with the training set; empty if there is none."""
    about, trained = card(name), find_card(TRAINED)
    if trained is None or "test" not in about["problems"]:
        return []
    found = about["overlap"].get(TRAINED)
    if found is None or found["fingerprint"] != trained["fingerprint"]:
        return [f"overlap with {TRAINED} unknown, `entrobench data check` tells"]
    if not found["near"]:
        return []
    numbers = f"{found['near']} of {found['problems']} problems stand in {TRAINED}"
    return [f"contaminated: {numbers}, {found['contained']} of them word for word"]
