"""The leaderboard as a table for the terminal, as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.base.errors import one_of
from harness.statistics import NEAR_BOUND as NEAR_BOUND_PROBLEMS
from harness.table.columns import BETTER, DEFAULT, MIXED, NEAR_BOUND, WORSE, cells_of, steps_of
from harness.table.leaderboard import BASE_MODEL, Row
from harness.table.origins import reference_notes
from harness.terminal import layout

FLAG = " †"
LISTED = 4  # rows that a note names: those of a table of fifty methods would fill the screen
FORMATS = ("table", "md", "csv", "json")
# Signs that end a cell of Markdown, or begin a link, an image, code, emphasis or HTML in it.
MARKDOWN = re.compile(r"[\\|`*\[\]]|<(?=[a-zA-Z/!])")
PROSE = re.compile(r"[\\\[\]]|<(?=[a-zA-Z/!])")  # the same in our own sentences, which may have code and emphasis
# A cell that begins so is computed by a spreadsheet, not shown; in some languages by wide signs, too.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", *"\uff1d\uff0b\uff0d\uff20")


def render(rows: Sequence[Row], how: str, width: int | None = None, columns: Sequence[str] = DEFAULT) -> str:
    """Returns the rows as text; a table with what of it fits into the columns of a terminal, if a width is given."""
    sections: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        sections.setdefault((row.task, row.model), []).append(row)
    tables = []
    for (task, model), section in sections.items():
        lines = cells_of(section, columns)
        tables.append(Table(f"{task}, {model}{FLAG * any(row.flags for row in section)}", lines, goes(lines[0])))
    return document(rows, tables, notes(rows), how, width)


@dataclass(frozen=True)
class Table:
    """A table for people: its header and its lines."""

    title: str
    lines: list[list[str]]
    goes: Sequence[Collection[str]] = ()  # what a narrow terminal does without, the least important columns first


def document(
    records: Sequence[Any], tables: Sequence[Table], notes: Sequence[str], how: str, width: int | None = None
) -> str:
    """Returns the records as JSON or CSV, or the tables of them with their notes."""
    one_of("--format", how, FORMATS)
    if how == "json":
        known = [finite(dataclasses.asdict(record)) for record in records]
        return json.dumps(known, indent=2, allow_nan=False) + "\n"
    if how == "csv":
        return as_csv(records)
    if how == "md":
        bullets = "".join(f"- {as_prose(note)}\n" for note in notes)
        return "\n".join([*map(as_markdown, tables), bullets])
    parts = [as_text(table, width) for table in tables]
    return "\n".join([*parts, "".join(f"{layout.folded(layout.visible(note), width)}\n" for note in notes)])


def finite(value: Any) -> Any:
    """Returns the value with null for numbers that JSON cannot hold, as the entropy of a run that diverged."""
    if isinstance(value, dict):
        return {key: finite(child) for key, child in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_csv(records: Sequence[Any]) -> str:
    names, lines = flat(records)
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: as_data(value) for name, value in line.items()} for line in lines)
    return file.getvalue()


def as_data(value: Any) -> Any:
    """Return a text that shows itself in a spreadsheet: behind an apostrophe where it would be a formula."""
    if not isinstance(value, str):
        return value
    return layout.visible(f"'{value}" if value.startswith(FORMULA) else value)


def flat(records: Sequence[Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the columns of the table of numbers, and its lines, in which some may be missing."""
    lines = [dict(leaves(dataclasses.asdict(record))) for record in records]
    fullest_first = sorted(lines, key=len, reverse=True)  # a row without results has few columns
    return list(dict.fromkeys(name for line in fullest_first for name in line)), lines


def leaves(value: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Columns such as pass_at_k.16.low; an estimate that is missing has none, a limit that is missing is empty."""
    for key, child in value.items():
        if isinstance(child, dict):
            yield from leaves(child, f"{prefix}{key}.")
        elif isinstance(child, list):
            yield f"{prefix}{key}", "; ".join(child)
        elif child is not None or key in ("low", "high"):
            yield f"{prefix}{key}", child


def notes(rows: Sequence[Row]) -> list[str]:
    texts = [
        "± or [low, high]: 95 % interval over seeds and problems. Avg@K: the mean over all samples. Entropy: the "
        "geometric mean over seeds, with its 95 % interval.",
        f"{BETTER} {WORSE}: the interval of the difference to {rows[0].baseline}, paired by seed and problem, "
        "excludes 0; without a mark the data do not tell the two apart.",
        "Distinct right: how many distinct right answers to a problem its samples hold, mean over problems.",
    ]
    if any(row.near_bound for row in rows):
        texts.append(doubt_near_bound(rows[0].baseline))
    if any(row.method == BASE_MODEL for row in rows):
        texts.append(f"{BASE_MODEL}: the model before training, by its evaluation at step 0.")
    texts += dict.fromkeys(f"{row.method} = {row.made_of}" for row in rows if row.made_of)
    texts += dict.fromkeys(f"{MIXED} {row.task}, {row.where}: {each}." for row in rows for each in row.mixed)
    texts += reference_notes((row.model, row.base_model) for row in rows)
    if any(row.seeds_done == 1 for row in rows):
        texts.append("One seed cannot tell how much seeds differ: rows with one seed have no interval and no mark.")
    needed = {", ".join([row.method, row.task, row.where]): row.seeds_needed for row in rows if row.seeds_needed}
    if needed:
        texts.append(two_seeds(needed))
    if any(row.seeds_done < row.seeds_expected for row in rows):
        texts.append("Not every expected cell is done; differences use the seeds that both have.")
    if any(math.isnan(each.mean) for row in rows for each in (row.entropy_initial, row.entropy_final) if each):
        texts.append("nan: at a seed of the row the entropy was no number, or was not recorded; `report` shows where.")
    for row in rows:
        if row.collapsed:
            where = ", ".join([row.method, row.task, row.where])
            texts.append(f"{where}: the entropy of {steps_of(row)} fell so low that training ended there.")
    return texts + sorted({f"{FLAG.strip()} {row.task}: {flag}" for row in rows for flag in row.flags})


def doubt_near_bound(baseline: str) -> str:
    """Return the note on differences between two methods near 0 or 1."""
    return (
        f"{NEAR_BOUND}: the method and {baseline} both differ from 0 or 1 by less than {NEAR_BOUND_PROBLEMS} problems' "
        "worth; there the interval of a difference may be too short, but rarely has the wrong sign."
    )


def two_seeds(needed: Mapping[str, Mapping[str, int | None]]) -> str:
    """Return the note on rows with two seeds; `needed`: by row and score, the seeds that would tell the difference."""
    parts = []
    for row, by_score in needed.items():
        counts = [f"{'no number' if count is None else count} by {score}" for score, count in by_score.items()]
        parts.append(f"{row}: {', '.join(counts)}")
    if len(parts) > LISTED:
        parts[LISTED:] = [f"of {len(parts) - LISTED} more, `seeds_needed` in --format csv"]
    return (
        "Two seeds tell little: intervals are wide, and how much seeds differ is hardly known. With noise as here, a "
        "true difference as large as the one seen is told from 0 four times in five by about this many seeds (no "
        f"number: it takes more problems): {'; '.join(parts)}."
    )


def as_markdown(table: Table) -> str:
    header, *body = table.lines
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *body]
    rows = (" | ".join(as_cell(text) for text in line) for line in lines)
    return f"**{as_cell(table.title)}**\n\n" + "".join(f"| {row} |\n" for row in rows)


def as_cell(text: str) -> str:
    """Return a text as a cell of Markdown that shows it and does nothing else."""
    return re.sub(MARKDOWN, r"\\\g<0>", one_line(text))


def as_prose(text: str) -> str:
    """Return a sentence of ours for Markdown, in which the names that it quotes make no link and no HTML."""
    return re.sub(PROSE, r"\\\g<0>", one_line(text))


def one_line(text: str) -> str:
    """Return a text on one line, with its control characters written out."""
    return layout.visible(" ".join(text.split()))


def as_text(table: Table, width: int | None) -> str:
    return layout.boxed(table.title, table.lines, width, table.goes, "--format csv")


def goes(header: Sequence[str]) -> list[list[str]]:
    """List the columns that a narrow terminal does without, the least important ones first.

    The finding is the difference of Pass@K, and the entropy at the end; so they stay longest.
    """
    differences = [name for name in header if " - " in name]
    return [
        ["seeds"],
        ["entropy, start"],
        ["distinct right"],
        *([name] for name in differences[:-1]),
        ["entropy, end"],
    ]
