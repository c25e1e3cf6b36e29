"""The leaderboard and the curves as one self-contained HTML page, with the curves as SVG files beside it."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from harness.base import files
from harness.base.errors import UserError
from harness.config import Config
from harness.matrix import Cell
from harness.record.log import MetricsLog
from harness.report import render
from harness.report.leaderboard import Row
from harness.report.plots import Series, plot

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
    header, *body = render.cells_of(rows)
    table = "".join(
        f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in line)}</tr>"
        for tag, line in [("th", header), *(("td", line) for line in body)]
    )
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in render.notes(rows))
    inline = "".join(f"<figure>{svg[svg.index('<svg') :]}</figure>" for svg in plots.values())
    page = (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(config.name)}</title><style>{STYLE}</style>"
        f"<h1>{html.escape(config.name)}</h1><table>{table}</table>{notes}{inline}"
    )
    files.write_text(folder / "report.html", page)
    return folder / "report.html"
