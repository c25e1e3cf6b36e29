"""Links from the page to the files of cells: configuration, metrics, log and answers."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from urllib.parse import quote

from pandas import DataFrame

from harness.cells.log import FILE as METRICS
from harness.cells.spec import FILE as SPEC
from harness.page.content import ScoreTable

LOG = "log.txt"
FILES = {"config": SPEC, "metrics": METRICS, "log": LOG}  # by the text of the link

Link = tuple[str, str]  # text and address


def files_of_method(cells: DataFrame, table: ScoreTable, method: str, folder: Path) -> list[tuple[str, list[Link]]]:
    """Return the links of each seed behind a row of a table; seeds without any have no entry."""
    behind = table.answers[table.answers["method"] == method].drop_duplicates("cell")
    places = cells[["cell", "folder", "address"]]
    by_seed = []
    for cell in behind.merge(places, on="cell").itertuples():
        links = cell_links(cell.folder, cell.address, cell.evaluated, folder)
        if links:
            by_seed.append((f"seed {cell.seed}", links))
    return by_seed


def files_of_unfinished(cells: DataFrame, folder: Path | None) -> list[list[Link]]:
    """Return the links of each cell that is not done."""
    links: list[list[Link]] = []
    for cell in cells[cells["state"] != "done"].itertuples():
        links.append([] if folder is None else cell_links(cell.folder, cell.address, None, folder))
    return links


def cell_links(of_cell: Path | None, address: str | None, evaluated: str | None, folder: Path) -> list[Link]:
    """Return the links to the files of a cell that exist here, relative to the page's folder, and to its run."""
    links = []
    for text, path in cell_files(of_cell, evaluated).items():
        if path.is_file():
            relative = Path(os.path.relpath(path, folder))
            links.append((text, quote(relative.as_posix())))
    if address is not None:
        links.append(("run in MLflow", address))
    return links


def cell_files(of_cell: Path | None, evaluated: str | None) -> dict[str, Path]:
    """Return the files of a cell by the texts of their links; the answers are of the last evaluation of a task."""
    if of_cell is None:
        return {}
    paths = {text: of_cell / name for text, name in FILES.items()}
    if evaluated is not None:
        answers = sorted((of_cell / "samples").glob(f"evaluate-{glob.escape(evaluated)}-*.jsonl"))
        if answers:
            paths["answers"] = answers[-1]
    return paths
