"""Links from the page to the files of cells: configuration, metrics, log and answers."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
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
    """Return the links of each seed behind a row of a table; seeds without any file here have none."""
    folders: Mapping[str, Path | None] = dict(zip(cells["cell"], cells["folder"], strict=True))
    behind = table.answers[table.answers["method"] == method].drop_duplicates("cell")
    by_seed = []
    for cell, seed, evaluated in zip(behind["cell"], behind["seed"], behind["evaluated"], strict=True):
        links = file_links(folders[cell], [evaluated], folder)
        if links:
            by_seed.append((f"seed {seed}", links))
    return by_seed


def files_of_unfinished(cells: DataFrame, folder: Path | None) -> list[list[Link]]:
    """Return the links of each cell that is not done."""
    folders = cells.loc[cells["state"] != "done", "folder"]
    return [[] if folder is None else file_links(path, [], folder) for path in folders]


def file_links(of_cell: Path | None, evaluated: Sequence[str], folder: Path) -> list[Link]:
    """Return the links to the files of a cell that exist here, relative to the page's folder."""
    if of_cell is None:
        return []
    paths = {text: of_cell / name for text, name in FILES.items()}
    for task in evaluated:
        answers = sorted((of_cell / "samples").glob(f"evaluate-{glob.escape(task)}-*.jsonl"))
        if answers:
            paths["answers"] = answers[-1]
    links = []
    for text, path in paths.items():
        if path.is_file():
            relative = Path(os.path.relpath(path, folder))
            links.append((text, quote(relative.as_posix())))
    return links
