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

LONGER, SMALL = "laptop-matrix-sorting-36-steps", "laptop-matrix-sentences-small-batches"
HIGH = "laptop-matrix-sentences-high-rate"
FOUR, NEW, CONTROLS = f"{HIGH}-four", f"{HIGH}-new", f"{HIGH}-bfloat16"
# Matrices evaluated during training, and their tasks.
EVALUATED = {LONGER: "sorting", **dict.fromkeys((SMALL, HIGH, FOUR, NEW, CONTROLS), "sentences(shots=0)")}
# Those with a picture.
MATRICES = (
    "laptop-matrix",
    "laptop-matrix-clip-b",
    "laptop-matrix-sorting",
    "laptop-matrix-sorting-seven",
    LONGER,
    SMALL,
    HIGH,
)
FURTHER = (
    FOUR,
    NEW,
    CONTROLS,
    "laptop-matrix-lists-field",
    "laptop-matrix-sorting-bonus-ppo",
    "laptop-matrix-sorting-chosen",
    "laptop-matrix-sorting-field",
    "laptop-matrix-sorting-field-chosen",
    "laptop-matrix-sorting-new-seeds",
    "laptop-matrix-sorting-pkpo-bbg",
    "laptop-matrix-sorting-tre-a2po",
    "laptop-matrix-sorting-dph-rl",
)
TITLES = {ENTROPY: "entropy, nats per token", "reward/mean": "share of right responses in training"}


def avg_of(matrix: str) -> str:
    return f"eval/{EVALUATED[matrix]}/avg"


def pass_of(matrix: str) -> str:
    return f"eval/{EVALUATED[matrix]}/pass@8"


def evaluations_of(matrix: str) -> Path:
    """Return the file of what each evaluation found."""
    return REFERENCE / matrix / "evaluations.csv"


def titles_of(matrix: str) -> dict[str, str]:
    """Return the titles of the panels by metric."""
    if matrix in EVALUATED:
        return {ENTROPY: TITLES[ENTROPY], pass_of(matrix): "Pass@8 on test problems"}
    return TITLES


def take(results: str) -> None:
    """Write the tables and the curves of the matrices that were run to results/reference."""
    take_tables(results, (*MATRICES, *FURTHER))
    for matrix in MATRICES:
        if (Path(results) / matrix).exists():
            curves = recorded_curves((*titles_of(matrix),), *configuration(matrix), f"results={results}")
            curves.to_csv(REFERENCE / matrix / "curves.csv", index=False, float_format="%.6g")
    for matrix in EVALUATED:
        if (Path(results) / matrix).exists():
            loaded = entrobench.load(*configuration(matrix), f"results={results}")
            found = loaded.curves(avg_of(matrix), pass_of(matrix))
            columns = ["metric", "method", "seed", "step", "value"]
            found[columns].to_csv(evaluations_of(matrix), index=False, float_format="%.6g")


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
