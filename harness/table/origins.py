"""Which methods of a table pool or compare cells that were not made alike; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    import pandas

    done = done_cells(pandas.concat(methods.values()))
    # A commit may change documents or methods alone, and these have hashes of their own.
    done = done.assign(code=done["harness"].where(done["harness"] != "", done["version"]))
    trained = done[done["method"] != BASE_MODEL].sort_values("seed", kind="stable")
    names = [method for method in methods if method != BASE_MODEL]
    sentences = []
    for kind, beginning in KINDS.items():
        by_value = trained[trained[kind] != ""].groupby(kind, sort=False)
        if by_value.ngroups < 2:
            continue
        texts = texts_of_values(trained, kind)
        parts = [f"{texts[value]} ({seeds_text(cells, names)})" for value, cells in by_value]
        of_method = {method: {*values} - {""} for method, values in done.groupby("method")[kind]}
        of_baseline = of_method.get(baseline, set())
        concerned = {method for method in methods if len(of_baseline | of_method.get(method, set())) > 1}
        sentences.append((f"{beginning}: {', '.join(parts)}", concerned))
    return sentences


def texts_of_values(cells: DataFrame, kind: str) -> dict[str, str]:
    if kind == "code":
        texts = {}
        for value, version, harness in zip(cells[kind], cells["version"], cells["harness"], strict=True):
            digits = f"(harness {harness[:HARNESS_DIGITS]})" if harness else ""
            texts[value] = " ".join(filter(None, (version, digits)))
        return texts
    if kind not in LISTS:
        return {value: value for value in cells[kind]}
    parts = {value: value.split(", ") for value in cells[kind] if value}
    in_all = set.intersection(*map(set, parts.values()))
    return {value: ", ".join(part for part in own if part not in in_all) for value, own in parts.items()}


def seeds_text(cells: DataFrame, methods: Sequence[str]) -> str:
    """Name the methods and seeds of cells, methods with the same seeds together."""
    seeds_by_method = {method: tuple(seeds) for method, seeds in cells.groupby("method")["seed"]}
    together: dict[tuple[int, ...], list[str]] = {}
    for method in methods:
        if method in seeds_by_method:
            together.setdefault(seeds_by_method[method], []).append(method)
    parts = []
    for seeds, names in together.items():
        of_all = len(names) == len(methods) > 1
        owners = "all methods" if of_all else ", ".join(names)
        word = "seed" if len(seeds) == 1 else "seeds"
        parts.append(f"{owners}: {word} {', '.join(map(str, seeds))}")
    return "; ".join(parts)
