"""The field run once more, with another base model: how much of its table is found again, by docs/evidence/field.md.

    python -m benchmarks.field_again RESULTS    # first take the tables of the second run from this folder
    python -m benchmarks.field_again            # print the answers, from results/reference

`python -m benchmarks.reference` then fills the page.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from pandas import DataFrame

from benchmarks import field, transfer

SECOND = "-again"  # at the end of a folder: the second run of a matrix


def kept_again() -> dict[str, str]:
    """Return the matrices of the field whose second run has results, and their tasks in words."""
    return {matrix: words for matrix, words in field.TASKS.items() if field.is_kept(f"{matrix}{SECOND}")}


def half_width(effect: dict[str, Any]) -> float:
    """Return half the width of an interval; a method that is GRPO here by construction has none, and no noise."""
    return float(effect["high"] - effect["low"]) / 2 if effect["low"] is not None else 0.0


def within_noise(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return whether the 95 % interval of the change from one run to the other includes 0."""
    return abs(first["mean"] - second["mean"]) <= math.hypot(half_width(first), half_width(second))


def agreement_table() -> DataFrame:
    """Return for each task and score how many signs are found again, and how many effects changed."""
    lines = []
    for matrix, words in kept_again().items():
        for score in (field.PASS, field.AVG):
            first, second = (transfer.effects(folder, score) for folder in (matrix, f"{matrix}{SECOND}"))
            shared = first.keys() & second.keys()
            changed = [method for method in shared if not within_noise(first[method], second[method])]
            line = {"task": words, "score": score} | transfer.agreement_line(first, second, shared)
            lines.append(line | {"changed": str(len(changed))})
    return DataFrame(lines).rename(columns={"carried over": "found again"})


def effects_table() -> DataFrame:
    """Return the effects in Pass@16 that are found again, both runs side by side as text, the highest first."""
    runs: dict[str, field.Rows] = {}
    found = set()
    for matrix, words in kept_again().items():
        first, second = matrix, f"{matrix}{SECOND}"
        runs |= {f"{words}, first": field.compared(first), f"{words}, again": field.compared(second)}
        found |= found_again(transfer.effects(first, field.PASS), transfer.effects(second, field.PASS))
    table = field.table(runs)
    differences = [column for column in table.columns if column == "method" or column.endswith(f" - {field.BASELINE}")]
    return table.loc[table["method"].isin(found), differences]


def found_again(first: transfer.Effects, second: transfer.Effects) -> set[str]:
    """Return the methods whose sign is found again."""
    shared = first.keys() & second.keys()
    return {method for method in shared if transfer.common_sign(first[method], second[method]) > 0}


def main(*arguments: str) -> None:
    for results in arguments:
        field.take_tables(results, field.TASKS, suffix=SECOND)
    print(effects_table().to_string(index=False))
    print(agreement_table().to_string(index=False))
    for matrix, words in kept_again().items():
        field.tell_verdicts(f"{words}, first", field.compared(matrix))
        field.tell_verdicts(f"{words}, again", field.compared(f"{matrix}{SECOND}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
