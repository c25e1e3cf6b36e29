"""Whether effects of methods carry over between sizes, puzzles and papers, by the rules of studies/transfer/README.md.

    python -m studies.transfer.analysis RESULTS    # first take the tables of both matrices from this folder
    python -m studies.transfer.analysis            # print the answers, from results/reference

`python -m studies.pages` then fills the page.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from itertools import combinations
from typing import Any

import numpy as np
from pandas import DataFrame

from studies.field import analysis as field
from studies.transfer.literature import LITERATURE, read_literature

SIZES = {"transfer-1m": "1 M", "transfer-5m": "5 M"}  # the matrices that only this page has
SETTINGS = {"field": "0.2 M", **SIZES, "field-coloring": "coloring, 0.2 M"}
PUBLISHED_BASELINE = "GRPO"

Effects = dict[str, dict[str, Any]]  # by method: mean, low, high of a difference from GRPO


def known_settings() -> dict[str, str]:
    """Return the settings with results, the field's first."""
    return {matrix: words for matrix, words in SETTINGS.items() if field.is_kept(matrix)}


def effects(matrix: str, score: str) -> Effects:
    """Return the difference of each method from GRPO in one setting."""
    return effects_of(field.compared(matrix), score)


def effects_of(rows: field.Rows, score: str) -> Effects:
    """Return the difference of each method from GRPO."""
    found = {}
    for method, scores in rows.items():
        if method not in (field.BASE_MODEL, field.BASELINE):
            found[method] = scores[score]["difference"]
    return found


def sign(effect: dict[str, Any]) -> int:
    """Return the sign of an effect whose interval excludes 0; else 0."""
    if effect["low"] is None:
        return 0
    return int(effect["low"] > 0) - int(effect["high"] < 0)


def common_sign(first: dict[str, Any], second: dict[str, Any]) -> int:
    """Return 1 if the sign of an effect carries over from one setting to another, -1 if it is contradicted, else 0."""
    return sign(first) * sign(second)


def shown_tau(first: list[float], second: list[float]) -> str:
    tau, low, high = field.tau_with_interval(first, second)
    return f"{tau:.2f} [{low:.2f}, {high:.2f}]"


def agreement_table() -> DataFrame:
    """Return for each pair of settings and each score how many signs carry over, and Kendall's tau."""
    lines, larger = [], methods_of_larger()
    for (first, first_words), (second, second_words) in combinations(known_settings().items(), 2):
        for score in (field.PASS, field.AVG):
            ours, theirs = effects(first, score), effects(second, score)
            shared = ours.keys() & theirs.keys()
            among = [shared]
            if shared > larger:  # between the tasks of the field: a second line for the methods of the larger sizes
                among.append(larger)
            for methods in among:
                line = {"settings": f"{first_words} and {second_words}", "score": score}
                lines.append(line | agreement_line(ours, theirs, methods))
    return DataFrame(lines)


def methods_of_larger() -> set[str]:
    """Return the methods that were run with a larger size, without GRPO."""
    larger = [set(effects(matrix, field.PASS)) for matrix in known_settings() if matrix in SIZES]
    return set().union(*larger)


def agreement_line(ours: Effects, theirs: Effects, methods: Collection[str]) -> dict[str, str]:
    """Return how many signs of methods carry over from one setting to another, and Kendall's tau."""
    ordered = sorted(methods)
    products = [common_sign(ours[method], theirs[method]) for method in ordered]
    means = [[each[method]["mean"] for method in ordered] for each in (ours, theirs)]
    return {
        "methods": str(len(ordered)),
        "carried over": str(products.count(1)),
        "contradicted": str(products.count(-1)),
        "open": str(products.count(0)),
        "Kendall's tau": shown_tau(*means),
    }


def effects_table() -> DataFrame:
    """Return the effects of the methods of the larger sizes in all settings."""
    settings = known_settings()
    columns = {}
    for matrix, words in settings.items():
        for score in (field.AVG, field.PASS):
            columns[f"{words}: {score} - grpo"] = effects(matrix, score)
    lines = []
    for method in sorted(methods_of_larger()):
        line = {"method": method}
        for heading, by_method in columns.items():
            effect = by_method.get(method)
            line[heading] = field.shown_difference({"difference": effect}) if effect else ""
        lines.append(line)
    return DataFrame(lines)


def published_effects() -> dict[str, list[float]]:
    """Return the reported differences from GRPO in Avg@K of each method, as shares."""
    found: dict[str, list[float]] = {}
    for number in read_literature(LITERATURE):
        if number.score == "avg" and number.baseline == PUBLISHED_BASELINE:
            found.setdefault(number.method, []).append((number.value - number.baseline_value) / 100)
    return found


def paired_with_papers() -> dict[str, tuple[list[float], float]]:
    """Return the reported effects and ours in Avg@K of each method that has both."""
    pairs, tasks = {}, list(field.by_task().values())
    for method, reported in sorted(published_effects().items()):
        ours = field.mean_difference(method, field.AVG, tasks)
        if np.isfinite(ours):
            pairs[method] = (reported, ours)
    return pairs


def literature_table() -> DataFrame:
    """Return the effects in Avg@K of papers and of the field as text."""
    lines = []
    for method, (reported, ours) in paired_with_papers().items():
        shown = {
            "reported, mean": f"{np.mean(reported):+.3f}",
            "numbers": str(len(reported)),
            "the field": f"{ours:+.3f}",
        }
        lines.append({"method": method} | shown)
    return DataFrame(lines)


def main(*arguments: str) -> None:
    for results in arguments:
        field.take_tables(results, SIZES)
    print(effects_table().to_string(index=False))
    print(agreement_table().to_string(index=False))
    print(literature_table().to_string(index=False))
    pairs = paired_with_papers().values()
    reported, ours = [float(np.mean(numbers)) for numbers, _ in pairs], [effect for _, effect in pairs]
    same = int((np.sign(reported) == np.sign(ours)).sum())
    print(f"papers: {same} of {len(pairs)} signs in Avg@K agree; Kendall's tau {shown_tau(reported, ours)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
