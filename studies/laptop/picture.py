"""The picture of a real language model under GRPO and Clip_B: entropy, and right responses, over steps.

python -m studies.laptop.picture laptop-matrix round=clip-b    # first take the curves, after the run
python -m studies.laptop.picture                               # draw them from results/reference
"""

from __future__ import annotations

import sys

import matplotlib as mpl
import pandas
from matplotlib.figure import Figure
from pandas import DataFrame

from studies.pages import ENTROPY, REFERENCE, REPEATABLE, draw_panel, recorded_curves

FOLDER = REFERENCE / "laptop-matrix-clip-b"
CURVES, PICTURE = FOLDER / "curves.csv", FOLDER / "curves.svg"
RIGHT = "reward/mean"
TITLES = {ENTROPY: "entropy, nats per token", RIGHT: "share of right responses in training"}


def draw(curves: DataFrame) -> None:
    """Write the picture, narrow enough for a phone."""
    trained = curves[curves["step"] > 0]
    with mpl.rc_context(REPEATABLE):
        figure = Figure(figsize=(5.2, 4.4), layout="constrained")
        panels = figure.subplots(2, 1, sharex=True)
        for panel, (metric, title) in zip(panels, TITLES.items(), strict=True):
            draw_panel(panel, trained[trained["metric"] == metric], title)
            panel.set_ylim(bottom=0)
        panels[-1].set_xlabel("training step", fontsize=9)
        figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1:]:
        FOLDER.mkdir(exist_ok=True)
        recorded_curves((*TITLES,), *sys.argv[1:]).to_csv(CURVES, index=False, float_format="%.6g")
    draw(pandas.read_csv(CURVES))
