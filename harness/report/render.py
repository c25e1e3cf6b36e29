"""The leaderboard as a table for the terminal, as Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from harness.base import fit
from harness.base.errors import one_of
from harness.base.statistics import Estimate
from harness.report.leaderboard import Row

BETTER, WORSE = "▲", "▼"
FLAG = " †"


def render(rows: Sequence[Row], how: str, width: int | None = None) -> str:
    """Returns the rows as text; a table with what of it fits into the columns of a terminal, if a width is given."""
    one_of("--format", how, ("table", "md", "csv", "json"))
    if how == "json":
        return json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n"
    if how == "csv":
        return as_csv(rows)
    sections: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        sections.setdefault((row.task, row.model), []).append(row)
    as_section = partial(as_table, width=width) if how == "table" else as_markdown
    parts = [
        as_section(f"{task}, {model}{FLAG * any(row.flags for row in section)}", section)
        for (task, model), section in sections.items()
    ]
    bullet = "- " if how == "md" else ""
    return "\n".join([*parts, "".join(f"{fit.folded(bullet + note, width)}\n" for note in notes(rows))])


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


def cells_of(rows: Sequence[Row]) -> list[list[str]]:
    """The header and the lines of a table for people; task, model and k are columns where they vary."""
    first = rows[0]
    varied = [axis for axis in ("task", "model", "k") if len({getattr(row, axis) for row in rows}) > 1]
    headline = "Pass@k" if "k" in varied else f"Pass@{first.k}"
    deltas = [f"Avg@K - {first.baseline}", f"{headline} - {first.baseline}"]
    header = ["method", *varied, "Avg@K", headline, *deltas, "entropy, first step", "last step", "seeds"]
    return [header, *([row.method, *(str(getattr(row, axis)) for axis in varied), *numbers(row)] for row in rows)]


def numbers(row: Row) -> list[str]:
    delta = row.delta_to_baseline
    return [
        shown(row.avg_at_k),
        shown(row.pass_at_k.get(row.k)),
        *([compared(delta, row), compared(row.delta_pass_at_k[row.k], row)] if delta else ["", ""]),
        shown(row.entropy_initial),
        shown(row.entropy_final),
        f"{row.seeds_done} of {row.seeds_expected}",
    ]


def shown(estimate: Estimate | None, sign: str = "") -> str:
    if estimate is None:
        return ""
    mean = f"{estimate.mean:{sign}.3f}"
    return mean if estimate.high is None else f"{mean} ±{estimate.high - estimate.mean:.3f}"


def compared(estimate: Estimate, row: Row) -> str:
    if row.method == row.baseline:
        return "baseline"
    return f"{shown(estimate, '+')} {mark(estimate)}".rstrip()


def mark(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None or estimate.low <= 0 <= estimate.high:
        return ""
    return BETTER if estimate.low > 0 else WORSE


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


def as_markdown(title: str, rows: Sequence[Row]) -> str:
    header, *body = cells_of(rows)
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *body]
    return f"**{title}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def goes(header: Sequence[str]) -> list[list[str]]:
    """Returns what a narrow terminal does without, the least important columns first."""
    differences = [name for name in header if " - " in name]
    return [["entropy, first step", "last step"], *([name] for name in reversed(differences[1:])), ["seeds"]]


def as_table(title: str, rows: Sequence[Row], width: int | None = None) -> str:
    lines = cells_of(rows)
    return fit.boxed(title, lines, width, goes(lines[0]), "--format csv")
