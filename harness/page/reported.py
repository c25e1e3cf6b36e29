"""Entropies of runs that others published, by base model; they are drawn, and never pooled or compared."""

from __future__ import annotations

import csv
from pathlib import Path

CURVES = Path(__file__).parent / "curves"
INDEX = "index.csv"  # a line for each of the other files: the run, its source and license


def reported_curves(model: str) -> dict[str, dict[int, float]]:
    """Return the published entropies of a model by run and step; folder, revision and case of its name do not count."""
    with open(CURVES / INDEX, newline="", encoding="utf-8") as file:
        runs = [run for run in csv.DictReader(file) if short_name(run["model"]) == short_name(model)]
    curves = {}
    for run in runs:
        with open(CURVES / run["file"], newline="", encoding="utf-8") as file:
            entropy = {int(line["step"]): float(line["entropy"]) for line in csv.DictReader(file)}
        curves[f"{run['method']}, {run['task']} (reported)"] = entropy
    return curves


def short_name(model: str) -> str:
    return model.rpartition("/")[2].partition("@")[0].casefold()
