"""Which methods of a table pool or compare cells of different code or base models; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from harness.base import files
from harness.base.errors import Damaged
from harness.table.read import Result

DIGITS = 8  # of the hash of the harness that people see
# The base models of the results that the repository keeps; an installed package does not have them.
REFERENCE = Path(__file__).parents[2] / "results/reference/demo/base_model.json"

Results = Mapping[int, Result]  # of a method, by seed
Cells = dict[str, list[int]]  # seeds by method


def code_of(result: Result) -> str:
    """Return the part of the record by which code of the harness is the same or not; empty if there is none."""
    # A commit may change documents or methods alone, and these have hashes of their own.
    return result.harness or result.version


def name_of_code(result: Result) -> str:
    known = f"(harness {result.harness[:DIGITS]})" if result.harness else ""
    return " ".join(filter(None, (result.version, known)))


def base_model_of(result: Result) -> str:
    return result.base_model


# A value that differs between cells of one experiment should not: how it is read and named, and what to say of it.
KINDS: tuple[tuple[Callable[[Result], str], Callable[[Result], str], str], ...] = (
    (code_of, name_of_code, "cells were made by different code of the harness"),
    (base_model_of, base_model_of, "cells began from different base models"),
)


def mixtures(
    methods: Mapping[str, Results], rows: Mapping[str, Results], baseline: Results
) -> list[tuple[str, set[str]]]:
    """Return sentences on how the cells of a table differ, each with the rows that it concerns.

    These are the rows whose own cells, or the baseline's beside them, differ. `rows`: the methods and the base model,
    which has no cells of its own.
    """
    found = []
    for value_of, name_of, what in KINDS:
        cells = cells_by(methods, value_of)
        if len(cells) < 2:
            continue
        names = {value_of(each): name_of(each) for results in methods.values() for each in results.values()}
        listed = ", ".join(f"{names[value]} ({told(of_value, methods)})" for value, of_value in cells.items())
        found.append((f"{what}: {listed}", mixing(rows, baseline, value_of)))
    return found


def mixing(rows: Mapping[str, Results], baseline: Results, value_of: Callable[[Result], str]) -> set[str]:
    """Return the rows whose cells and the baseline's have more than one value."""
    theirs = values(baseline, value_of)
    return {name for name, results in rows.items() if len(theirs | values(results, value_of)) > 1}


def values(results: Results, value_of: Callable[[Result], str]) -> set[str]:
    """Return the values of a method's cells, of which those with older records have none."""
    return set(map(value_of, results.values())) - {""}


def cells_by(methods: Mapping[str, Results], value_of: Callable[[Result], str]) -> dict[str, Cells]:
    """Return the cells of each value, in the order of the seeds."""
    found: dict[str, Cells] = {}
    pairs = [(seed, method) for method, results in methods.items() for seed in results]
    for seed, method in sorted(pairs, key=lambda pair: pair[0]):
        if value := value_of(methods[method][seed]):
            found.setdefault(value, {}).setdefault(method, []).append(seed)
    return found


def told(cells: Cells, methods: Mapping[str, Results]) -> str:
    """Name the methods and seeds of cells, methods with the same seeds together."""
    together: dict[tuple[int, ...], list[str]] = {}
    for method in methods:
        if method in cells:
            together.setdefault(tuple(cells[method]), []).append(method)
    parts = []
    for seeds, these in together.items():
        whose = "all methods" if len(these) == len(methods) > 1 else ", ".join(these)
        parts.append(f"{whose}: seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}")
    return "; ".join(parts)


# Of the results that the repository keeps


def reference_notes(present: Iterable[tuple[str, str | None]], reference: Path | None = None) -> list[str]:
    """Return a sentence on each model whose base model is not one that the kept results are of.

    `present`: names of models with the digests of their base models, as a row has them.
    """
    by_model: dict[str, set[str]] = {}
    for model, digests in present:
        by_model.setdefault(model, set()).update(digests.split(", ") if digests else ())
    notes = []
    for model, known in kept(reference or REFERENCE).items():
        others = sorted(by_model.get(model, set()) - known.keys())
        if others:
            theirs = ", ".join(f"{digest} on {processor}" for digest, processor in known.items())
            notes.append(
                f"The base model {model} is {', '.join(others)}. The results in results/reference are of another one "
                f"({theirs}), so digits differ from theirs."
            )
    return notes


def kept(reference: Path) -> dict[str, dict[str, str]]:
    """Return the kept base models by name: the processor of each digest."""
    try:
        given = files.read_json(reference)
    except FileNotFoundError:
        return {}
    found: dict[str, dict[str, str]] = {}
    try:
        for each in given["base_models"]:
            found.setdefault(each["model"], {})[each["digest"]] = each["processor"]
    except (KeyError, TypeError) as error:
        raise Damaged(reference, "it must list base_models, each with model, digest and processor") from error
    return found
