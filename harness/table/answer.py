"""The selected tables one after the other, in the format that a reader asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.base.errors import UserError
from harness.table import columns, compare, latex, render
from harness.table.leaderboard import LeaderboardRow
from harness.table.select import Part
from harness.terminal import layout

HEADINGS = {"md": "## {}\n\n", "latex": "% {}\n"}
BULLETS = {"md": "- ", "latex": "% "}


def render_parts(
    parts: Sequence[Part],
    how: str,
    *,
    shown_columns: Sequence[str] = columns.DEFAULT,
    sort: str | None = None,
    comparing: bool = False,
    width: int | None = None,
) -> str:
    """Return the tables as text; in CSV and JSON, where there are several, rows name their table.

    `how`: table, md, csv, json or latex. `comparing`: tests and ranks instead of scores. `width`: of the terminal.
    """
    check_any_done(parts)
    if how in ("csv", "json"):
        return render_data(parts, how, sort, comparing)
    heading, bullet = HEADINGS.get(how, "{}\n\n"), BULLETS.get(how, "")
    # Titles have names of a user, which must not become links, comments' ends or further lines.
    plain = {"md": render.as_prose, "latex": latex.as_comment}.get(how, render.one_line)
    texts = []
    for part in parts:
        if not part.shown.any_done():
            body = "no cell is done\n"
        elif how == "latex":
            body = latex.render_latex(part.comparisons())
        elif comparing:
            body = compare.render_comparisons(part.comparisons(), how, width)
        else:
            body = render.render_rows(sorted_part(part, sort), how, width, shown_columns)
        title = heading.format(plain(part.title)) if len(parts) > 1 else ""
        text = title + body
        for sentence in part.lacking:
            text += f"{layout.folded(bullet + plain(sentence), width)}\n"
        texts.append(text)
    return "\n".join(texts)


def render_data(parts: Sequence[Part], how: str, sort: str | None, comparing: bool) -> str:
    """Return all rows, or all comparisons, of the tables as one CSV or JSON."""
    rows: list[LeaderboardRow] = []
    comparisons: list[compare.Comparison] = []
    for part in parts:
        name = part.title if len(parts) > 1 else None
        if comparing:
            comparisons += [replace(comparison, experiment=name) for comparison in part.comparisons()]
        else:
            rows += [replace(row, experiment=name) for row in sorted_part(part, sort)]
    if comparing:
        return compare.render_comparisons(comparisons, how)
    return render.render_rows(rows, how)


def sorted_part(part: Part, sort: str | None) -> list[LeaderboardRow]:
    if sort:
        return columns.sorted_rows(part.rows(), sort)
    return part.rows()


def check_any_done(parts: Sequence[Part]) -> None:
    sentences = []
    for part in parts:
        if part.shown.any_done():
            return
        sentences += [f"{part.title}: no cell is done.", *part.lacking]
    raise UserError(" ".join(sentences))
