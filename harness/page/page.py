"""The page of a matrix: one HTML file without anything that it needs to fetch, made from templates and the content."""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from pandas import DataFrame

from harness.base import files
from harness.base.addresses import without_secrets
from harness.base.errors import UserError
from harness.base.terminal import visible
from harness.base.units import plural
from harness.cells.log import FILE as METRICS
from harness.cells.spec import FILE as SPEC
from harness.config import Config, flat
from harness.matrix import REPORT, Cell
from harness.page import figures, scores
from harness.page.content import (
    ANSWERS,
    QUESTIONS,
    PageContent,
    ScoreTable,
    content_of_config,
    content_of_experiment,
    content_of_packs,
)
from harness.page.figures import Figure
from harness.page.finding import colored_methods, findings_of, summary
from harness.table import columns, render
from harness.table.frames import DONE

TEMPLATES = Path(__file__).parent / "templates"
PAGE, STYLE, SCRIPTS = "page.html.j2", "page.css", ("draw.js", "page.js")
LEADING_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?")

TableCell = dict[str, Any]  # text; mark: BETTER, WORSE or nothing; value: that it is sorted by, None for its text
SEEDS = "Lines are means over seeds; bands are their 95 % intervals."
# id, title, text, and groups: each has a title, empty where none is needed, and figures with their ids.
Section = dict[str, Any]
FILES = {"config": SPEC, "metrics": METRICS, "log": "log.txt"}  # by the text of the link
Link = tuple[str, str]  # text and address


def write_report(
    config: Config, matrix: Sequence[Cell], run_command: str | None = None, out: Path | None = None
) -> Path:
    """Write the page of a matrix, by default next to its cells; `run_command` repeats the matrix."""
    content = content_of_config(config, matrix, run_command)
    return write_page(content, out or config.folder / REPORT / "report.html")


def write_experiment_report(experiment: str, uri: str, out: Path | None = None) -> Path:
    """Write the page of an MLflow experiment, by default into the current folder, by its name."""
    content = content_of_experiment(uri, experiment)
    return write_page(content, out or Path(f"report-{file_name(experiment)}.html"))


def report_of_packs(packs: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of packs, by default into the current folder, by the name of the first matrix."""
    content = content_of_packs(packs)
    return write_page(content, out or Path(f"report-{file_name(content.name)}.html"))


def write_page(content: PageContent, path: Path) -> Path:
    if path.is_dir():
        raise UserError(f"{path} is a folder; a page needs the name of a file")
    files.write_text(path, render_page(content, path.parent))
    return path


def file_name(text: str) -> str:
    """Return a text as a part of a file name."""
    return re.sub(r"[^\w.+-]+", "_", text)


def render_page(content: PageContent, folder: Path | None = None) -> str:
    """Return the page; links to the files of cells are relative to `folder`, and left out without it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=visible_text,
    )
    # NaN is refused, since a script cannot parse it as JSON; without spaces the page is smaller.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    components = {method: method_parts(content.cells, method) for method in content.methods}
    finding, *others = sections_of(content)
    groups = [of_group for section in (finding, *others) for _, of_group in section["groups"]]
    drawn = {figure_id: figures.payload(figure) for figure_id, figure in itertools.chain(*groups)}
    fronts = [figure.options["front"] for _, of_table in finding["groups"] for _, figure in of_table]
    methods = content.drawn_methods
    unfinished = content.cells[content.cells["state"] != DONE].itertuples()
    return environment.get_template(PAGE).render(
        content=content,
        methods=methods,
        colored=colored_methods(content, methods, fronts),
        findings=findings_of(content, dict(finding["groups"])),
        summary=summary(content),
        notes=render.row_notes(content.rows),
        tables=page_tables(content, folder),
        sections=others,
        drawn=drawn,
        unfinished=[(cell, cell_links(cell.folder, cell.address, None, folder)) for cell in unfinished],
        components=components,
        settings=without_secrets(yaml.safe_dump(content.settings, sort_keys=False, allow_unicode=True)),
        origin=origin_lines(content.cells),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=version("entrobench"),
        questions=QUESTIONS,
        answers=ANSWERS,
        style=(TEMPLATES / STYLE).read_text("utf-8"),
        scripts=[(TEMPLATES / name).read_text("utf-8") for name in SCRIPTS],
    )


def visible_text(value: Any) -> Any:
    """Return a text of the content with its control characters written out; scripts and styles are of another type."""
    # Not isinstance: what the templates mark as safe, or have escaped, is of a subclass.
    return visible(value) if type(value) is str else value


def page_tables(content: PageContent, folder: Path | None) -> list[dict[str, Any]]:
    """Return the tables of scores, with links to the files of the cells behind each row."""
    tables = []
    for table in content.tables:
        header, *lines = columns.table_lines(table.rows)
        rows = []
        for row, line in zip(table.rows, lines, strict=True):
            files_of_row = files_of_method(content.cells, table, row.method, folder)
            rows.append({"method": row.method, "cells": list(map(table_cell, line)), "files": files_of_row})
        tables.append({"title": table.title, "header": header, "rows": rows})
    return tables


def table_cell(text: str) -> TableCell:
    mark = text[-1] if text.endswith((columns.BETTER, columns.WORSE)) else ""
    number = LEADING_NUMBER.match(text)
    value = float(number.group()) if number else None
    if text == "baseline":  # its difference from itself, between the better and the worse methods
        value = 0.0
    return {"text": text.removesuffix(mark).strip(), "mark": mark, "value": value}


# The cells


def method_parts(cells: DataFrame, method: str) -> list[str]:
    """Return the parts of a method with all of their options, as the cells have them."""
    identities = cells.loc[cells["method"] == method, "identity"]
    parts: list[dict[str, Any]] = next((identity["method"] for identity in identities if "method" in identity), [])
    texts = []
    for part in parts:
        options = [f"{key}={json.dumps(value)}" for key, value in part.items() if key != "component"]
        texts.append(f"{part['component']}({', '.join(options)})")
    return texts


def origin_lines(cells: DataFrame) -> list[tuple[str, str]]:
    """Return the recorded origin of the numbers: when, on which devices, by which versions."""
    lines = []
    times = [time for of_cell in cells["times"].dropna() for time in of_cell]
    if times:
        lines += [("records from", minute_text(min(times))), ("to", minute_text(max(times)))]
    values: dict[str, Counter[str]] = {}
    for cell in cells[cells["state"] != "planned"].itertuples():
        recorded = {"device": cell.device or "unknown", **cell.made}
        for key, value in flat(recorded):
            if value is not None:
                values.setdefault(key, Counter())[str(value)] += 1
    for key, counted in values.items():
        texts = list(counted)
        if len(counted) > 1:
            texts = [f"{value} ({plural(number, 'cell')})" for value, number in counted.items()]
        lines.append((key, "; ".join(texts)))
    return lines


def minute_text(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


# The sections that consist of figures


def sections_of(content: PageContent) -> list[Section]:
    """Return the sections that consist of figures, without empty ones; the first has those of the finding."""
    methods = content.drawn_methods
    trainings = {}
    for title, cells, curves in content.trainings():
        reported = figures.reported_curves(cells["model"].iloc[0])
        trainings[title] = figures.training_figures(curves, methods, reported)
    ids: set[str] = set()

    def section(id: str, title: str, text: str, groups: Sequence[tuple[str, list[Figure]]]) -> Section:
        numbered = []
        for name, of_group in groups:
            group_title = name if len(groups) > 1 else ""
            if with_ids := [(unique_id(f"{id} {group_title} {figure.title}", ids), figure) for figure in of_group]:
                numbered.append((group_title, with_ids))
        return {"id": id, "title": title, "text": text, "groups": numbered}

    def of_tables(draw: Callable[[ScoreTable], list[Figure]]) -> list[tuple[str, list[Figure]]]:
        return [(table.title, draw(table)) for table in content.tables]

    def training(group: str) -> list[tuple[str, list[Figure]]]:
        return [(title, by_group[group]) for title, by_group in trainings.items()]

    finding, *others = [
        section("finding", "Finding", "", of_tables(scores.pareto_figures)),
        section("scores", "Scores", "", of_tables(scores.score_figures)),
        section(
            "axes",
            "Scores over settings",
            "The further axes of the configuration, apart from methods, tasks, models and seeds, one at a time. All "
            "other settings are the same within a figure.",
            scores.axis_groups(content.rows),
        ),
        section("progress", "Scores over steps", "", of_tables(partial(scores.progress_figures, methods=methods))),
        section("entropy", "Entropy", SEEDS, training("Entropy")),
        section("rewards", "Rewards", SEEDS, training("Rewards")),
        section(
            "quadrants",
            "Quadrants",
            "A token's quadrant is given by the sign of its advantage A, and by whether its S* lies above or below its "
            "expectation N. To first order A > 0 with S* > N and A < 0 with S* < N lower the entropy, the other two "
            "raise it. Push: what the tokens of a quadrant that were not dropped add to the predicted change. " + SEEDS,
            training("Quadrants"),
        ),
        section("clips", "Clips", SEEDS, training("Clips")),
        section("lengths", "Responses", f"Of the training batches. {SEEDS}", training("Lengths")),
        section("time", "Time", "", training("Time")),
        section(
            "problems",
            "Problems lost and won",
            "Each point is a problem: how often the model solved it before any training, and how often after; on the "
            "line nothing changed. Squares were lost: solved at least once before, never after. Triangles were won: "
            "never before, at least once after.",
            of_tables(partial(scores.problem_figures, methods=methods)),
        ),
        section("seeds", "Seeds", "", of_tables(partial(scores.seed_figures, methods=methods))),
    ]
    return [finding, *(other for other in others if other["groups"])]


def unique_id(text: str, ids: set[str]) -> str:
    """Return a text as an id that a link can name, and add it to the ids that are taken."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    id, number = words, 1
    while id in ids:
        number += 1
        id = f"{words}-{number}"
    ids.add(id)
    return id


# Links to the files of cells: configuration, metrics, log and answers


def files_of_method(
    cells: DataFrame, table: ScoreTable, method: str, folder: Path | None
) -> list[tuple[str, list[Link]]]:
    """Return the links of each seed behind a row of a table; seeds without any have no entry."""
    behind = table.answers[table.answers["method"] == method].drop_duplicates("cell")
    places = cells[["cell", "folder", "address"]]
    by_seed = []
    for cell in behind.merge(places, on="cell").itertuples():
        if links := cell_links(cell.folder, cell.address, cell.evaluated, folder):
            by_seed.append((f"seed {cell.seed}", links))
    return by_seed


def cell_links(of_cell: Path | None, address: str | None, evaluated: str | None, folder: Path | None) -> list[Link]:
    """Return the links to the files of a cell that exist here, relative to the page's folder, and to its run."""
    links: list[Link] = []
    if folder is None:
        return links
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
        # The digits of the step, since a task may be named as another and more: aime, aime-24.
        answers = sorted((of_cell / "samples").glob(f"evaluate-{glob.escape(evaluated)}-{6 * '[0-9]'}*.jsonl"))
        if answers:
            paths["answers"] = answers[-1]
    return paths
