"""Which methods of a table pool or compare cells that were not made alike; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.table.frames import BASE_MODEL, Axes, Frames, done_cells

if TYPE_CHECKING:
    from pandas import DataFrame

HARNESS_DIGITS = 8  # digits of the hash of the harness in a sentence

# Values that should be equal in all cells of an experiment, with the beginning of the sentence if they are not.
KINDS = {
    "code": "cells were made by different code of the harness",
    "base_model": "cells began from different base models",
    "libraries": "cells were computed by different versions of libraries",
    "rounding": "cells were computed with sums in different orders",
}
LISTS = ("libraries", "rounding")  # of these, only the parts that differ are named

SeedsByMethod = dict[str, list[int]]


def mixed_rows(frames: Frames, baseline: str) -> dict[tuple[str, Axes], list[str]]:
    """Return how the cells behind a row are not of one experiment, by method and table; base models included."""
    mixed: dict[tuple[str, Axes], list[str]] = {}
    for axes, methods in frames.tables.items():
        for sentence, concerned in mixtures(methods, baseline):
            for method in concerned:
                mixed.setdefault((method, axes), []).append(sentence)
    return mixed


def mixtures(methods: Mapping[str, DataFrame], baseline: str) -> list[tuple[str, set[str]]]:
    """Return sentences on how the cells of a table differ, each with the rows that it concerns.

    A row is concerned if its cells, together with the baseline's, differ. `methods`: the cells of a table by method.
    The base model borrows the cells of others, so it can be concerned but never named.
    """
    done = {method: with_code(done_cells(cells)) for method, cells in methods.items()}
    trained = {method: cells for method, cells in done.items() if method != BASE_MODEL}
    sentences = []
    for kind, beginning in KINDS.items():
        seeds = seeds_by_value(trained, kind)
        if len(seeds) < 2:
            continue
        names = names_of_values(trained, kind)
        parts = [f"{names[value]} ({seeds_text(by_method, trained)})" for value, by_method in seeds.items()]
        sentences.append((f"{beginning}: {', '.join(parts)}", concerned_rows(done, baseline, kind)))
    return sentences


def with_code(cells: DataFrame) -> DataFrame:
    """Return the cells with the record by which code of the harness is the same or not; empty if there is none."""
    # A commit may change documents or methods alone, and these have hashes of their own.
    code = cells["harness"].where(cells["harness"] != "", cells["version"])
    return cells.assign(code=code)


def names_of_values(methods: Mapping[str, DataFrame], kind: str) -> dict[str, str]:
    """Return the texts of the values of a kind."""
    names = {}
    for cells in methods.values():
        for value, version, harness in zip(cells[kind], cells["version"], cells["harness"], strict=True):
            if kind == "code":
                digits = f"(harness {harness[:HARNESS_DIGITS]})" if harness else ""
                names[value] = " ".join(filter(None, (version, digits)))
            else:
                names[value] = value
    if kind in LISTS:
        parts = {value: value.split(", ") for value in names if value}
        for value, own in parts.items():
            names[value] = ", ".join(part for part in own if not all(part in other for other in parts.values()))
    return names


def concerned_rows(methods: Mapping[str, DataFrame], baseline: str, kind: str) -> set[str]:
    """Return the rows whose cells and the baseline's have more than one value; records of old versions have none."""
    of_baseline = {*methods[baseline][kind]} if baseline in methods else set()
    return {method for method, cells in methods.items() if len((of_baseline | {*cells[kind]}) - {""}) > 1}


def seeds_by_value(methods: Mapping[str, DataFrame], kind: str) -> dict[str, SeedsByMethod]:
    """Return the cells of each value, in the order of the seeds."""
    triples: list[tuple[int, str, str]] = []
    for method, cells in methods.items():
        triples += zip(cells["seed"], [method] * len(cells), cells[kind], strict=True)
    seeds: dict[str, SeedsByMethod] = {}
    for seed, method, value in sorted(triples, key=lambda triple: triple[0]):
        if value:
            seeds.setdefault(value, {}).setdefault(method, []).append(int(seed))
    return seeds


def seeds_text(by_method: SeedsByMethod, methods: Mapping[str, DataFrame]) -> str:
    """Name the methods and seeds of cells, methods with the same seeds together."""
    together: dict[tuple[int, ...], list[str]] = {}
    for method in methods:
        if method in by_method:
            together.setdefault(tuple(by_method[method]), []).append(method)
    parts = []
    for seeds, names in together.items():
        of_all = len(names) == len(methods) > 1
        owners = "all methods" if of_all else ", ".join(names)
        word = "seed" if len(seeds) == 1 else "seeds"
        parts.append(f"{owners}: {word} {', '.join(map(str, seeds))}")
    return "; ".join(parts)
