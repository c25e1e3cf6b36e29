"""The leaderboard as a table for the terminal, as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from harness.base.errors import one_of
from harness.report.columns import BETTER, DEFAULT, WORSE, cells_of
from harness.report.leaderboard import Row

FLAG = " †"


def render(rows: Sequence[Row], how: str, columns: Sequence[str] = DEFAULT) -> str:
    one_of("--format", how, ("table", "md", "csv", "json"))
    if how == "json":
        return json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n"
    if how == "csv":
        return as_csv(rows)
    sections: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        sections.setdefault((row.task, row.model), []).append(row)
    as_section = as_table if how == "table" else as_markdown
    parts = [
        as_section(f"{task}, {model}{FLAG * any(row.flags for row in section)}", section, columns)
        for (task, model), section in sections.items()
    ]
    bullet = "- " if how == "md" else ""
    return "\n".join([*parts, "".join(f"{bullet}{note}\n" for note in notes(rows))])


def as_csv(rows: Sequence[Row]) -> str:
    names, lines = flat(rows)
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def flat(rows: Sequence[Row]) -> tuple[list[str], list[dict[str, Any]]]:
    """Returns the columns of the table of numbers, and its lines, in which some may be missing."""
    lines = [dict(leaves(dataclasses.asdict(row))) for row in rows]
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
        "±: 95 % interval over seeds and problems; of entropy, over seeds. Avg@K: the mean over all samples.",
        f"{BETTER} {WORSE}: the interval of the difference to {rows[0].baseline}, paired by seed and problem, "
        "excludes 0; without a mark the two are tied.",
    ]
    if any(row.seeds_done == 1 for row in rows):
        texts.append("One seed cannot tell how much seeds differ: rows with one seed have no interval and no mark.")
    if any(row.seeds_done < row.seeds_expected for row in rows):
        texts.append("Not every expected cell is done; differences use the seeds that both have.")
    return texts + sorted({f"{FLAG.strip()} {row.task}: {flag}" for row in rows for flag in row.flags})


def as_markdown(title: str, rows: Sequence[Row], columns: Sequence[str]) -> str:
    header, *body = cells_of(rows, columns)
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *body]
    return f"**{title}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_table(title: str, rows: Sequence[Row], columns: Sequence[str]) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    header, *body = cells_of(rows, columns)
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in header:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for line in body:
        table.add_row(*map(Text, line))
    file = io.StringIO()
    Console(file=file, width=240, color_system=None).print(table)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().rstrip().splitlines())
