"""The page of a matrix: one HTML file that needs nothing beside it, made from the templates and a story."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from harness.base import files
from harness.base.addresses import without_secrets
from harness.page import curves, figures, scores, sentences
from harness.page.figures import Figure
from harness.page.story import ANSWERS, QUESTIONS, Story, Told
from harness.table import columns, render
from harness.table.leaderboard import Row
from harness.terminal.layout import visible

if TYPE_CHECKING:
    from harness.page.plots import Series

TEMPLATES = Path(__file__).parent / "templates"
PAGE, STYLE, SCRIPT = "page.html.j2", "page.css", "page.js"
SEEDS = "Lines are means over seeds; bands are the range of the seeds, from lowest to highest, and no interval."
LEADING_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


@dataclass(frozen=True)
class Group:
    """Figures with one legend, under a title; the title is empty where the section needs none."""

    title: str
    figures: list[tuple[str, Figure]]  # with their ids


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    text: str
    groups: list[Group]

    @property
    def names(self) -> set[str]:
        """The names of all that its figures draw."""
        return {series["name"] for group in self.groups for _, figure in group.figures for series in figure.series}


@dataclass(frozen=True)
class TableCell:
    text: str
    mark: str = ""  # BETTER, WORSE or nothing
    value: float | None = None  # that it is sorted by; None: by its text


def write(story: Story, path: Path) -> Path:
    files.write_text(path, render_page(story))
    return path


def write_pictures(story: Story, folder: Path) -> None:
    """Writes the two curves that documents show, as SVG: Pass@k and the entropy over steps."""
    from harness.page.plots import plot

    styles, several = figures.styles_of(story), len({cell.where for cell in story.cells}) > 1
    for board in story.boards:
        passed: dict[str, Series] = {
            method: gathered([{s: e.score(board.k) for s, e in c.evaluations[board.task].items()} for c in cells])
            for method, cells in figures.by_method(board.cells, styles).items()
        }
        label = f"{board.rows[0].task}{f'-{board.rows[0].where}' * several}"
        title = f"Pass@{board.k} on {label}, {story.settings['eval']['split']} problems"
        files.write_text(folder / f"pass_at_{board.k}-{slug(label)}.svg", plot(passed, title, f"Pass@{board.k}"))
    for training in story.trainings:
        entropy: dict[str, Series] = {
            method: gathered([cell.curves["entropy/mean"] for cell in cells])
            for method, cells in figures.by_method(training.cells, styles).items()
        }
        label = f"{training.cells[0].task}{f'-{training.cells[0].where}' * several}"
        svg = plot(entropy, f"Entropy while training on {label}", "nats a token", "log")
        files.write_text(folder / f"entropy-{slug(label)}.svg", svg)


def gathered(of_seeds: Sequence[Mapping[int, float]]) -> Series:
    """Returns the values of the seeds by step."""
    found: Series = {}
    for curve in of_seeds:
        for step, value in curve.items():
            found.setdefault(step, []).append(value)
    return found


def slug(text: str) -> str:
    """Returns a name that a file may have."""
    return re.sub(r"[^\w.+-]+", "_", text)


def render_page(story: Story) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=written_out,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    sections = sections_of(story)
    drawn = {id: figures.payload(figure) for each in sections for group in each.groups for id, figure in group.figures}
    return environment.get_template(PAGE).render(
        story=story,
        styles=figures.styles_of(story),
        summary=sentences.summary(story),
        tables=[(board.title, *table(board.rows)) for board in story.boards],
        notes=render.notes(story.rows),
        sections=sections,
        drawn=drawn,
        unfinished=[cell for cell in story.cells if cell.state != "done"],
        components={method: components(story.cells, method) for method in story.methods},
        differences=differences(story.cells),
        settings=without_secrets(yaml.safe_dump(story.settings, sort_keys=False, allow_unicode=True)),
        origin=origin(story.cells),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=version("entrobench"),
        plotly_version=version("plotly"),
        questions=QUESTIONS,
        answers=ANSWERS,
        style=(TEMPLATES / STYLE).read_text(),
        script=(TEMPLATES / SCRIPT).read_text(),
        library=get_plotlyjs(),
    )


def written_out(value: Any) -> Any:
    """Return a text of the story with its control characters written out; scripts and styles are of another type."""
    return visible(value) if type(value) is str else value


def sections_of(story: Story) -> list[Section]:
    """Returns the sections that consist of figures, with what is empty left out."""
    styles, numbers = figures.styles_of(story), itertools.count(1)
    trainings = [(each.title, curves.training_figures(each, styles)) for each in story.trainings]

    def section(id: str, title: str, text: str, groups: Sequence[tuple[str, list[Figure]]]) -> Section:
        found = [
            Group(name if len(groups) > 1 else "", [(f"figure-{next(numbers)}", figure) for figure in these])
            for name, these in groups
            if these
        ]
        return Section(id, title, text, found)

    def boards(of: Any) -> list[tuple[str, list[Figure]]]:
        return [(board.title, of(board, styles)) for board in story.boards]

    def training(*titles: str) -> list[tuple[str, list[Figure]]]:
        return [(title, [f for name in titles for f in found.get(name, [])]) for title, found in trainings]

    every = [
        section("scores", "Scores", "", boards(scores.score_figures)),
        section(
            "axes",
            "Scores over settings",
            "What the configuration varies beside methods, tasks, models and seeds, one axis at a time. All else is "
            "alike within a figure.",
            scores.axis_groups(story.rows, styles),
        ),
        section("progress", "Scores over steps", SEEDS, boards(scores.progress_figures)),
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
            boards(scores.problem_figures),
        ),
        section("seeds", "Seeds", "", boards(scores.seed_figures)),
    ]
    return [each for each in every if each.groups]


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[TableCell]]]:
    """Returns the header and the lines of the table of one board."""
    header, *lines = columns.cells_of(rows)
    return header, [[table_cell(text) for text in line] for line in lines]


def table_cell(text: str) -> TableCell:
    mark = text[-1] if text.endswith((columns.BETTER, columns.WORSE)) else ""
    found = LEADING_NUMBER.match(text)
    value = 0.0 if text == "baseline" else float(found.group()) if found else None
    return TableCell(text.removesuffix(mark).strip(), mark, value)


# Of the cells


def components(cells: Sequence[Told], method: str) -> list[str]:
    """Returns the parts of a method with all of their options, as the cells have them."""
    parts: list[dict[str, Any]] = next(
        (cell.identity["method"] for cell in cells if cell.method == method and "method" in cell.identity), []
    )
    return [
        f"{part['component']}({', '.join(f'{key}={json.dumps(v)}' for key, v in part.items() if key != 'component')})"
        for part in parts
    ]


def differences(cells: Sequence[Told]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns the settings, apart from the axes of the matrix, in which cells differ: each value, and who has it."""
    axes = ("method", "task", "evaluation_tasks", "model", "seed")
    flat = {
        f"{cell.method} on {cell.task}, {cell.where}, seed {cell.seed}": dict(
            leaves({key: value for key, value in cell.identity.items() if key not in axes})
        )
        for cell in cells
        if cell.identity
    }
    found = []
    for path in sorted({path for values in flat.values() for path in values}):
        by_value: dict[str, list[str]] = {}
        for name, values in flat.items():
            by_value.setdefault(values.get(path, "(none)"), []).append(name)
        if len(by_value) > 1:
            found.append((path, [(value, "; ".join(names)) for value, names in by_value.items()]))
    return found


def leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields each setting by its whole key, as JSON."""
    for key, child in value.items():
        if isinstance(child, Mapping):
            yield from leaves(child, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(child)


def origin(cells: Sequence[Told]) -> list[tuple[str, str]]:
    """Returns what is known of where the numbers come from: when, on which devices, by which versions."""
    times = [time for cell in cells if cell.times for time in cell.times]
    told = [("records from", moment(min(times))), ("to", moment(max(times)))] if times else []
    values: dict[str, Counter[str]] = {}
    for cell in cells:
        if cell.state != "planned":
            for key, value in [("device", json.dumps(cell.device or "unknown")), *leaves(cell.made)]:
                if value != "null":
                    values.setdefault(key, Counter())[str(json.loads(value))] += 1
    for key, counted in values.items():
        several = len(counted) > 1
        told.append((key, "; ".join(f"{v} ({n} cells)" if several else v for v, n in counted.items())))
    return told


def moment(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
