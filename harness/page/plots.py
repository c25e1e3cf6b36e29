"""Curves as SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

Series = dict[float, list[float]]  # step -> the values of the seeds
Average = Callable[[list[float]], float]


def plot(
    curves: Mapping[str, Series],
    title: str,
    label: str,
    scale: str = "linear",
    across: tuple[str, str] = ("step", "linear"),
    average: Average = np.mean,
) -> str:
    """Means over seeds, with the range of the seeds as a band, as SVG."""
    # The same curves give the same file, and a dollar sign in a name is one, not the beginning of a formula.
    with mpl.rc_context({"svg.hashsalt": "entrobench", "text.parse_math": False}):
        return drawn_svg(curves, title, label, scale, across, average)


def drawn_svg(
    curves: Mapping[str, Series], title: str, label: str, scale: str, across: tuple[str, str], average: Average
) -> str:
    """Return the figure as matplotlib writes it with the present settings."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, (method, points) in enumerate(curves.items()):
        steps = sorted(points)
        color = f"C{number}"
        means, low, high = [], [], []
        for step in steps:
            means.append(average(points[step]))
            low.append(min(points[step]))
            high.append(max(points[step]))
        axes.plot(steps, means, color=color, label=method, linewidth=1.6)
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(title=title, xlabel=across[0], xscale=across[1], ylabel=label, yscale=scale)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=2, fontsize="small")
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
