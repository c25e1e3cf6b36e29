"""The leaderboard and the curves as one self-contained HTML page, with the curves as SVG files beside it."""

from __future__ import annotations

import html
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from harness.base import files
from harness.config import Config, UserError
from harness.matrix import Cell
from harness.record.tracking import MetricsLog
from harness.report import table as leaderboard
from harness.report.table import Row

Series = dict[float, list[float]]  # step -> the values of the seeds

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 3rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left }
svg { max-width: 100%; height: auto }
"""


def series(cells: Sequence[Cell], metric: str) -> dict[str, Series]:
    """The values of a metric by method and step, one a seed."""
    found: dict[str, Series] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        for line in MetricsLog(cell.folder).read():
            if metric in line["metrics"]:
                found[cell.method][line["step"]].append(line["metrics"][metric])
    return found


def plot(
    curves: Mapping[str, Series],
    title: str,
    label: str,
    scale: str = "linear",
    across: tuple[str, str] = ("step", "linear"),
) -> str:
    """Means over seeds, with the range of the seeds as a band, as SVG."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, (method, points) in enumerate(curves.items()):
        steps = sorted(points)
        colour = f"C{number}"
        axes.plot(steps, [np.mean(points[s]) for s in steps], color=colour, label=method, linewidth=1.6)
        axes.fill_between(
            steps,
            [min(points[s]) for s in steps],
            [max(points[s]) for s in steps],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    axes.set(title=title, xlabel=across[0], xscale=across[1], ylabel=label, yscale=scale)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=2, fontsize="small")
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "entrobench"}):  # the same curves give the same file
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def write(config: Config, cells: Sequence[Cell], rows: Sequence[Row]) -> Path:
    done = [cell for cell in cells if cell.progress().state == "done"]
    if not done:
        raise UserError(f"no cell of {config.name!r} is done yet; `entrobench run {config.name}` runs them")
    plots = {}
    for task, k in sorted({(row.task, row.k) for row in rows}):
        plots[f"pass_at_{k}-{task}"] = plot(
            series(done, f"eval/{task}/pass@{k}"), f"Pass@{k} on {task}, {config.eval.split} problems", f"Pass@{k}"
        )
    for task in config.tasks:
        here = [cell for cell in done if cell.task == task]
        plots[f"entropy-{task}"] = plot(
            series(here, "entropy/mean"), f"Entropy while training on {task}", "nats a token", "log"
        )
    folder = config.folder / "report"
    for name, svg in plots.items():
        files.write_text(folder / f"{name}.svg", svg)
    header, *body = leaderboard.cells_of(rows)
    table = "".join(
        f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in line)}</tr>"
        for tag, line in [("th", header), *(("td", line) for line in body)]
    )
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in leaderboard.notes(rows))
    inline = "".join(f"<figure>{svg[svg.index('<svg') :]}</figure>" for svg in plots.values())
    page = (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(config.name)}</title><style>{STYLE}</style>"
        f"<h1>{html.escape(config.name)}</h1><table>{table}</table>{notes}{inline}"
    )
    files.write_text(folder / "report.html", page)
    return folder / "report.html"
