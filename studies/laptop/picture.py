"""Tables and pictures of a real language model in training: entropy, and right responses, over steps.

python -m studies.laptop.picture RESULTS    # first take tables and curves of the matrices that are there
python -m studies.laptop.picture            # draw the curves from results/reference
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import pandas
from matplotlib.figure import Figure

import entrobench
from studies.field.analysis import configuration, take_tables
from studies.pages import ENTROPY, REFERENCE, REPEATABLE, draw_panel, recorded_curves

LONGER = "laptop-matrix-sorting-36-steps"
MATRICES = ("laptop-matrix", "laptop-matrix-clip-b", "laptop-matrix-sorting", "laptop-matrix-sorting-seven", LONGER)
FURTHER = (
    "laptop-matrix-sorting-chosen",
    "laptop-matrix-sorting-field",
    "laptop-matrix-sorting-new-seeds",
    "laptop-matrix-sorting-pkpo-bbg",
)
TITLES = {ENTROPY: "entropy, nats per token", "reward/mean": "share of right responses in training"}
AVG, PASS = "eval/sorting/avg", "eval/sorting/pass@8"
EVALUATIONS = REFERENCE / LONGER / "evaluations.csv"


def titles_of(matrix: str) -> dict[str, str]:
    """Return the titles of the panels by metric."""
    return {ENTROPY: TITLES[ENTROPY], PASS: "Pass@8 on test problems"} if matrix == LONGER else TITLES


def take(results: str) -> None:
    """Write the tables and the curves of the matrices that were run to results/reference."""
    take_tables(results, (*MATRICES, *FURTHER))
    for matrix in MATRICES:
        if (Path(results) / matrix).exists():
            curves = recorded_curves((*titles_of(matrix),), *configuration(matrix), f"results={results}")
            curves.to_csv(REFERENCE / matrix / "curves.csv", index=False, float_format="%.6g")
    if (Path(results) / LONGER).exists():
        evaluations = entrobench.load(*configuration(LONGER), f"results={results}").curves(AVG, PASS)
        columns = ["metric", "method", "seed", "step", "value"]
        evaluations[columns].to_csv(EVALUATIONS, index=False, float_format="%.6g")


def draw(matrix: str) -> None:
    """Write the picture, narrow enough for a phone."""
    curves = pandas.read_csv(REFERENCE / matrix / "curves.csv")
    with mpl.rc_context(REPEATABLE):
        figure = Figure(figsize=(5.2, 4.4), layout="constrained")
        panels = figure.subplots(2, 1, sharex=True)
        for panel, (metric, title) in zip(panels, titles_of(matrix).items(), strict=True):
            draw_panel(panel, curves[curves["metric"] == metric], title)
            panel.set_ylim(bottom=0)
        panels[-1].set_xlabel("training step", fontsize=9)
        figure.savefig(REFERENCE / matrix / "curves.svg", metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1:]:
        take(sys.argv[1])
    for matrix in MATRICES:
        draw(matrix)
