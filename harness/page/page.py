"""The page of a matrix: one HTML file without anything that it needs to fetch, made from templates and the content."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pandas import DataFrame

from harness.base import files
from harness.base.addresses import without_secrets
from harness.page import curves, figures, scores, sentences
from harness.page.content import ANSWERS, QUESTIONS, PageContent, ScoreTable
from harness.page.figures import Figure, Styles
from harness.table import columns, render
from harness.table.leaderboard import LeaderboardRow
from harness.terminal.layout import visible
from harness.terminal.units import plural

if TYPE_CHECKING:
    from harness.page.plots import Series

TEMPLATES = Path(__file__).parent / "templates"
PAGE, STYLE, SCRIPT = "page.html.j2", "page.css", "page.js"
SEEDS = "Lines are means over seeds; bands are the range of the seeds, from lowest to highest, and no interval."
AXES_OF_CELLS = ("method", "task", "evaluation_tasks", "model", "seed")  # keys of an identity
LEADING_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")

TitledFigures = tuple[str, list[Figure]]
# Of the page: id, title, text, groups (each with one legend: a title, empty where none is needed, and figures with
# their ids), and the names of all series.
Section = dict[str, Any]
TableCell = dict[str, Any]  # text; mark: BETTER, WORSE or nothing; value: that it is sorted by, None for its text


def write_page(content: PageContent, path: Path) -> Path:
    files.write_text(path, render_page(content))
    return path


def write_pictures(content: PageContent, folder: Path) -> None:
    """Write the two curves that documents show, as SVG: Pass@k and the entropy over steps."""
    from harness.page.plots import plot

    styles = figures.styles_of(content)
    several = content.cells["where"].nunique() > 1
    split = content.settings["eval"]["split"]
    for table in content.tables:
        headline = f"Pass@{table.k}"
        passed = series_by_method(table.scores, headline, styles)
        label = picture_label(table.rows[0].task, table.rows[0].where, several)
        svg = plot(passed, f"{headline} on {label}, {split} problems", headline)
        files.write_text(folder / f"pass_at_{table.k}-{file_name(label)}.svg", svg)
    for _, cells, of_training in content.trainings():
        entropy = series_by_method(of_training[of_training["metric"] == "entropy/mean"], "value", styles)
        first = cells.iloc[0]
        label = picture_label(first["task"], first["where"], several)
        svg = plot(entropy, f"Entropy while training on {label}", "nats a token", "log")
        files.write_text(folder / f"entropy-{file_name(label)}.svg", svg)


def picture_label(task: str, where: str, several: bool) -> str:
    return f"{task}-{where}" if several else task


def series_by_method(frame: DataFrame, column: str, styles: Styles) -> dict[str, Series]:
    """Return the values of the seeds at each step, by method."""
    series = {}
    for method, of_method in figures.by_method(frame, styles):
        series[method] = of_method.groupby("step")[column].agg(list).to_dict()
    return series


def file_name(text: str) -> str:
    """Return a text as a part of a file name."""
    return re.sub(r"[^\w.+-]+", "_", text)


def render_page(content: PageContent) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=visible_text,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    sections = sections_of(content)
    tables = []
    for table in content.tables:
        tables.append((table.title, *page_table(table.rows)))
    components = {}
    for method in content.methods:
        components[method] = method_parts(content.cells, method)
    drawn = {}
    for section in sections:
        for _, of_group in section["groups"]:
            for figure_id, figure in of_group:
                drawn[figure_id] = figures.payload(figure)
    return environment.get_template(PAGE).render(
        content=content,
        styles=figures.styles_of(content),
        summary=sentences.summary(content),
        tables=tables,
        notes=render.row_notes(content.rows),
        sections=sections,
        drawn=drawn,
        unfinished=content.cells[content.cells["state"] != "done"],
        components=components,
        differences=setting_differences(content.cells),
        settings=without_secrets(yaml.safe_dump(content.settings, sort_keys=False, allow_unicode=True)),
        origin=origin_lines(content.cells),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=version("entrobench"),
        plotly_version=version("plotly"),
        questions=QUESTIONS,
        answers=ANSWERS,
        style=(TEMPLATES / STYLE).read_text(),
        script=(TEMPLATES / SCRIPT).read_text(),
        library=get_plotlyjs(),
    )


def visible_text(value: Any) -> Any:
    """Return a text of the content with its control characters written out; scripts and styles are of another type."""
    return visible(value) if type(value) is str else value


def sections_of(content: PageContent) -> list[Section]:
    """Return the sections that consist of figures, without empty ones."""
    styles, numbers = figures.styles_of(content), itertools.count(1)
    trainings = {}
    for title, _, of_training in content.trainings():
        trainings[title] = curves.training_figures(of_training, styles)

    def section(id: str, title: str, text: str, groups: Sequence[TitledFigures]) -> Section:
        numbered, names = [], set()
        for name, of_group in groups:
            if of_group:
                with_ids = []
                for figure in of_group:
                    with_ids.append((f"figure-{next(numbers)}", figure))
                    names |= {series["name"] for series in figure.series}
                numbered.append((name if len(groups) > 1 else "", with_ids))
        return {"id": id, "title": title, "text": text, "groups": numbered, "names": names}

    def of_tables(draw: Callable[[ScoreTable, Styles], list[Figure]]) -> list[TitledFigures]:
        return [(table.title, draw(table, styles)) for table in content.tables]

    def training(group: str) -> list[TitledFigures]:
        return [(title, by_group.get(group, [])) for title, by_group in trainings.items()]

    sections = [
        section("scores", "Scores", "", of_tables(scores.score_figures)),
        section(
            "axes",
            "Scores over settings",
            "The further axes of the configuration, apart from methods, tasks, models and seeds, one at a time. All "
            "other settings are the same within a figure.",
            scores.axis_groups(content.rows, styles),
        ),
        section("progress", "Scores over steps", SEEDS, of_tables(scores.progress_figures)),
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
            of_tables(scores.problem_figures),
        ),
        section("seeds", "Seeds", "", of_tables(scores.seed_figures)),
    ]
    return [candidate for candidate in sections if candidate["groups"]]


def page_table(rows: Sequence[LeaderboardRow]) -> tuple[list[str], list[list[TableCell]]]:
    """Return the header and the lines of a table of scores."""
    header, *lines = columns.table_lines(rows)
    return header, [list(map(table_cell, line)) for line in lines]


def table_cell(text: str) -> TableCell:
    mark = text[-1] if text.endswith((columns.BETTER, columns.WORSE)) else ""
    number = LEADING_NUMBER.match(text)
    value = float(number.group()) if number else None
    if text == "baseline":
        value = 0.0
    return {"text": text.removesuffix(mark).strip(), "mark": mark, "value": value}


# The cells


def method_parts(cells: DataFrame, method: str) -> list[str]:
    """Return the parts of a method with all of their options, as the cells have them."""
    for identity in cells.loc[cells["method"] == method, "identity"]:
        if "method" in identity:
            return [part_text(part) for part in identity["method"]]
    return []


def part_text(part: Mapping[str, Any]) -> str:
    options = [f"{key}={json.dumps(value)}" for key, value in part.items() if key != "component"]
    return f"{part['component']}({', '.join(options)})"


def setting_differences(cells: DataFrame) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the settings, apart from the axes of the matrix, in which cells differ: each value, and its cells."""
    settings_by_cell = {}
    for cell in cells.itertuples():
        if cell.identity:
            name = f"{cell.method} on {cell.task}, {cell.where}, seed {cell.seed}"
            settings_by_cell[name] = dict(flat_settings(cell.identity))
    every_key = set().union(*settings_by_cell.values())
    differences = []
    for key in sorted(every_key):
        if key.partition(".")[0] in AXES_OF_CELLS:
            continue
        names_by_value: dict[str, list[str]] = {}
        for name, settings in settings_by_cell.items():
            names_by_value.setdefault(settings.get(key, "(none)"), []).append(name)
        if len(names_by_value) > 1:
            listed = [(value, "; ".join(names)) for value, names in names_by_value.items()]
            differences.append((key, listed))
    return differences


def flat_settings(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting by its whole key, as JSON."""
    for key, child in value.items():
        if isinstance(child, Mapping):
            yield from flat_settings(child, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(child)


def origin_lines(cells: DataFrame) -> list[tuple[str, str]]:
    """Return the recorded origin of the numbers: when, on which devices, by which versions."""
    lines = []
    times: list[float] = []
    for of_cell in cells["times"].dropna():
        times += of_cell
    if times:
        lines += [("records from", minute_text(min(times))), ("to", minute_text(max(times)))]
    values: dict[str, Counter[str]] = {}
    for cell in cells[cells["state"] != "planned"].itertuples():
        for key, value in [("device", json.dumps(cell.device or "unknown")), *flat_settings(cell.made)]:
            if value != "null":
                values.setdefault(key, Counter())[str(json.loads(value))] += 1
    for key, counted in values.items():
        texts = list(counted)
        if len(counted) > 1:
            texts = [f"{value} ({plural(number, 'cell')})" for value, number in counted.items()]
        lines.append((key, "; ".join(texts)))
    return lines


def minute_text(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
