"""The page of a matrix: one HTML file without anything that it needs to fetch, made from templates and the content."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from harness.base import files
from harness.base.addresses import without_secrets
from harness.page import curves, figures, scores, sentences
from harness.page.content import ANSWERS, QUESTIONS, CellRecord, PageContent, ScoreTable
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
LEADING_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")

TitledFigures = tuple[str, list[Figure]]
Group = tuple[str, list[tuple[str, Figure]]]  # a title, empty where none is needed, and figures with their ids


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    text: str
    groups: list[Group]  # each has one legend

    @property
    def names(self) -> set[str]:
        """The names of all series of its figures."""
        return {series["name"] for _, drawn in self.groups for _, figure in drawn for series in figure.series}


@dataclass(frozen=True)
class TableCell:
    text: str
    mark: str = ""  # BETTER, WORSE or nothing
    value: float | None = None  # that it is sorted by; None: by its text


def write_page(content: PageContent, path: Path) -> Path:
    files.write_text(path, render_page(content))
    return path


def write_pictures(content: PageContent, folder: Path) -> None:
    """Write the two curves that documents show, as SVG: Pass@k and the entropy over steps."""
    from harness.page.plots import plot

    styles = figures.styles_of(content)
    several = len({cell.where for cell in content.cells}) > 1
    split = content.settings["eval"]["split"]
    for table in content.tables:
        passed: dict[str, Series] = {}
        for method, cells in figures.by_method(table.cells, styles).items():
            passed[method] = values_by_step([pass_curve(cell, table) for cell in cells])
        label = picture_label(table.rows[0].task, table.rows[0].where, several)
        svg = plot(passed, f"Pass@{table.k} on {label}, {split} problems", f"Pass@{table.k}")
        files.write_text(folder / f"pass_at_{table.k}-{file_name(label)}.svg", svg)
    for trained in content.trainings.values():
        entropy: dict[str, Series] = {}
        for method, cells in figures.by_method(trained, styles).items():
            entropy[method] = values_by_step([cell.curves["entropy/mean"] for cell in cells])
        label = picture_label(trained[0].task, trained[0].where, several)
        svg = plot(entropy, f"Entropy while training on {label}", "nats a token", "log")
        files.write_text(folder / f"entropy-{file_name(label)}.svg", svg)


def picture_label(task: str, where: str, several: bool) -> str:
    return f"{task}-{where}" if several else task


def pass_curve(cell: CellRecord, table: ScoreTable) -> dict[int, float]:
    return {step: evaluation.score(table.k) for step, evaluation in cell.evaluations[table.task].items()}


def values_by_step(of_seeds: Sequence[Mapping[int, float]]) -> Series:
    """Return the values of the seeds by step."""
    values: Series = {}
    for curve in of_seeds:
        for step, value in curve.items():
            values.setdefault(step, []).append(value)
    return values


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
    groups = [group for section in sections for group in section.groups]
    drawn = {id: figures.payload(figure) for _, of_group in groups for id, figure in of_group}
    return environment.get_template(PAGE).render(
        content=content,
        styles=figures.styles_of(content),
        summary=sentences.summary(content),
        tables=[(table.title, *page_table(table.rows)) for table in content.tables],
        notes=render.row_notes(content.rows),
        sections=sections,
        drawn=drawn,
        unfinished=[cell for cell in content.cells if cell.state != "done"],
        components={method: method_parts(content.cells, method) for method in content.methods},
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
    trainings = {title: curves.training_figures(cells, styles) for title, cells in content.trainings.items()}

    def section(id: str, title: str, text: str, groups: Sequence[TitledFigures]) -> Section:
        numbered: list[Group] = []
        for name, of_group in groups:
            if of_group:
                with_ids = [(f"figure-{next(numbers)}", figure) for figure in of_group]
                numbered.append((name if len(groups) > 1 else "", with_ids))
        return Section(id, title, text, numbered)

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
    return [candidate for candidate in sections if candidate.groups]


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
    return TableCell(text.removesuffix(mark).strip(), mark, value)


# The cells


def method_parts(cells: Sequence[CellRecord], method: str) -> list[str]:
    """Return the parts of a method with all of their options, as the cells have them."""
    for cell in cells:
        if cell.method == method and "method" in cell.identity:
            return [part_text(part) for part in cell.identity["method"]]
    return []


def part_text(part: Mapping[str, Any]) -> str:
    options = [f"{key}={json.dumps(value)}" for key, value in part.items() if key != "component"]
    return f"{part['component']}({', '.join(options)})"


def setting_differences(cells: Sequence[CellRecord]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the settings, apart from the axes of the matrix, in which cells differ: each value, and its cells."""
    axes = ("method", "task", "evaluation_tasks", "model", "seed")
    settings_by_cell = {}
    for cell in cells:
        if cell.identity:
            settings = {key: value for key, value in cell.identity.items() if key not in axes}
            name = f"{cell.method} on {cell.task}, {cell.where}, seed {cell.seed}"
            settings_by_cell[name] = dict(flat_settings(settings))
    differences = []
    for key in sorted({key for settings in settings_by_cell.values() for key in settings}):
        by_value: dict[str, list[str]] = {}
        for name, settings in settings_by_cell.items():
            by_value.setdefault(settings.get(key, "(none)"), []).append(name)
        if len(by_value) > 1:
            differences.append((key, [(value, "; ".join(names)) for value, names in by_value.items()]))
    return differences


def flat_settings(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting by its whole key, as JSON."""
    for key, child in value.items():
        if isinstance(child, Mapping):
            yield from flat_settings(child, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(child)


def origin_lines(cells: Sequence[CellRecord]) -> list[tuple[str, str]]:
    """Return the recorded origin of the numbers: when, on which devices, by which versions."""
    lines = []
    times = [time for cell in cells if cell.times for time in cell.times]
    if times:
        lines += [("records from", minute_text(min(times))), ("to", minute_text(max(times)))]
    values: dict[str, Counter[str]] = {}
    for cell in cells:
        if cell.state != "planned":
            for key, value in [("device", json.dumps(cell.device or "unknown")), *flat_settings(cell.made)]:
                if value != "null":
                    values.setdefault(key, Counter())[str(json.loads(value))] += 1
    for key, counted in values.items():
        texts = [f"{value} ({plural(number, 'cell')})" for value, number in counted.items()]
        lines.append((key, "; ".join(texts if len(counted) > 1 else counted)))
    return lines


def minute_text(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
