"""The field with another base model: how much of its tables is found again, by studies/field/README.md.

    python -m studies.field.other_base RESULTS    # first take the tables of the second run from this folder
    python -m studies.field.other_base            # print the answers, from results/reference

`python -m studies.pages` then fills the pages.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pandas import DataFrame

from harness.config import TUNED_SUFFIX
from studies.field import analysis as field
from studies.field import tuned as field_tuned
from studies.transfer import analysis as transfer

OTHER_BASE = "-other-base"  # at the end of a folder: the second run of a matrix, with another base model
TUNED = {"field-tuned": "Countdown"}  # the tuned matrix with a second run, with the options that the first run chose


def with_other_base(matrices: Mapping[str, str]) -> dict[str, str]:
    """Return those matrices whose second run has results, and their tasks in words."""
    return {matrix: words for matrix, words in matrices.items() if field.is_kept(f"{matrix}{OTHER_BASE}")}


def second_runs(matrices: Mapping[str, str]) -> dict[str, field.Rows]:
    """Return the rows of the second runs of matrices by their tasks in words."""
    return {words: field.compared(f"{matrix}{OTHER_BASE}") for matrix, words in with_other_base(matrices).items()}


def runs_of(matrix: str) -> tuple[field.Rows, field.Rows]:
    """Return the rows of both runs of a matrix by their methods."""
    if matrix in TUNED:
        return field_tuned.by_name(matrix), field_tuned.by_name(matrix, kept_in=f"{matrix}{OTHER_BASE}")
    return field.compared(matrix), field.compared(f"{matrix}{OTHER_BASE}")


def half_width(effect: dict[str, Any]) -> float:
    """Return half the width of an interval; a method that is GRPO here by construction has none, and no noise."""
    return float(effect["high"] - effect["low"]) / 2 if effect["low"] is not None else 0.0


def within_noise(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return whether the 95 % interval of the change from one run to the other includes 0."""
    return abs(first["mean"] - second["mean"]) <= math.hypot(half_width(first), half_width(second))


def agreement_table(matrices: Mapping[str, str]) -> DataFrame:
    """Return for each task and score how many signs are found again, and how many effects changed."""
    lines = []
    for matrix, words in with_other_base(matrices).items():
        for score in (field.PASS, field.AVG):
            first, second = (transfer.effects_of(rows, score) for rows in runs_of(matrix))
            shared = first.keys() & second.keys()
            changed = [method for method in shared if not within_noise(first[method], second[method])]
            line = {"task": words, "score": score} | transfer.agreement_line(first, second, shared)
            lines.append(line | {"changed": str(len(changed))})
    return DataFrame(lines).rename(columns={"carried over": "found again"})


def effects_table(matrix: str) -> DataFrame:
    """Return the effects in Pass@16 that are found again, both runs side by side as text, the highest first."""
    first, second = runs_of(matrix)
    table = field.table({"first": first, "second": second})
    found = found_again(transfer.effects_of(first, field.PASS), transfer.effects_of(second, field.PASS))
    differences = [column for column in table.columns if column == "method" or column.endswith(f" - {field.BASELINE}")]
    return table.loc[table["method"].isin(found), differences]


def found_again(first: transfer.Effects, second: transfer.Effects) -> set[str]:
    """Return the methods whose sign is found again."""
    shared = first.keys() & second.keys()
    return {method for method in shared if transfer.common_sign(first[method], second[method]) > 0}


def main(*arguments: str) -> None:
    for results in arguments:
        field.take_tables(results, [*field.TASKS, *field.FIVE_SEEDS], suffix=OTHER_BASE)
        for matrix in TUNED:
            if (Path(results) / f"{matrix}{TUNED_SUFFIX}").exists():
                options = f"tune.file={field.REFERENCE / matrix / field_tuned.CHOICE}"
                field.take_table(results, matrix, field.REFERENCE / f"{matrix}{OTHER_BASE}", "ruleset=tuned", options)
    for matrices in (field.TASKS, field.FIVE_SEEDS, TUNED):
        print(agreement_table(matrices).to_string(index=False))
        for matrix in with_other_base(matrices):
            print(effects_table(matrix).to_string(index=False))
            for run, rows in zip(("first", "second"), runs_of(matrix), strict=True):
                field.tell_verdicts(f"{matrix}, {run}", rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
