"""Puts the tables that a reader asked for one after the other, in the format that was asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from harness.base.errors import UserError
from harness.table import columns, compare, latex, render
from harness.table.compare import Comparison
from harness.table.leaderboard import Row
from harness.table.select import Part
from harness.terminal import layout


@dataclass(frozen=True)
class Form:
    """How the tables are shown."""

    how: str  # table | md | csv | json | latex
    columns: Sequence[str] = columns.DEFAULT
    sort: str | None = None  # a column
    compare: bool = False  # tests and ranks instead of scores
    width: int | None = None  # of the terminal; None: there is none


def text(parts: Sequence[Part], form: Form) -> str:
    """Returns the tables as text; in CSV and JSON, where there are several, rows name their table."""
    check_done(parts)
    several = len(parts) > 1
    if form.how in ("csv", "json"):
        named = [(part.title if several else None, part) for part in parts]
        if form.compare:
            found = [dataclasses.replace(each, experiment=name) for name, part in named for each in compared(part)]
            return compare.render(found, form.how)
        rows = [dataclasses.replace(row, experiment=name) for name, part in named for row in rows_of(part, form)]
        return render.render(rows, form.how)
    heading = {"md": "## {}\n\n", "latex": "% {}\n"}.get(form.how, "{}\n\n")
    bullet = {"md": "- ", "latex": "% "}.get(form.how, "")
    plain = {"md": render.as_prose, "latex": latex.comment}.get(form.how, render.one_line)
    told = []
    for part in parts:
        body = one(part, form) if done(part) else "no cell is done\n"
        title = heading.format(plain(part.title)) if several else ""
        lines = "".join(f"{layout.folded(bullet + plain(sentence), form.width)}\n" for sentence in part.lacking)
        told.append(title + body + lines)
    return "\n".join(told)


def one(part: Part, form: Form) -> str:
    if form.how == "latex":
        return latex.render(compared(part))
    if form.compare:
        return compare.render(compared(part), form.how, form.width)
    return render.render(rows_of(part, form), form.how, form.width, form.columns)


def rows_of(part: Part, form: Form) -> list[Row]:
    rows = part.rows()
    return columns.ordered(rows, form.sort) if form.sort else rows


def compared(part: Part) -> list[Comparison]:
    return compare.comparisons(part.entries, part.board.baseline, part.board.ks)


def done(part: Part) -> bool:
    return any(entry.results for entry in part.shown)


def check_done(parts: Sequence[Part]) -> None:
    if not any(map(done, parts)):
        raise UserError(" ".join(f"{part.title}: no cell is done. {' '.join(part.lacking)}" for part in parts))
