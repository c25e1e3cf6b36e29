"""The selected tables one after the other, in the format that a reader asks for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base import files, terminal
from harness.base.errors import UserError
from harness.base.terminal import visible
from harness.config import setting_label
from harness.table import columns, compare, render
from harness.table.columns import COLUMNS, DEFAULT, format_estimate, header_names, method_text
from harness.table.compare import Comparison
from harness.table.frames import ROW, Frames, done_cells
from harness.table.leaderboard import LeaderboardRow
from harness.table.render import records_frame
from harness.table.select import Part

if TYPE_CHECKING:
    from pandas import DataFrame

HEADINGS = {"md": "## {}\n\n", "latex": "% {}\n"}
BULLETS = {"md": "- ", "latex": "% "}
LATEX_SIGNS = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "[": "{[}",  # at the beginning of a row it would belong to the end of the one before, and so would a star
        "*": "{*}",
        "\n": " ",
    }
)
MIXED_MARK = r"\textsuperscript{\S}"  # behind a method whose cells, or the baseline's, are not of one experiment
# The columns of a Parquet file; it names tasks as the leaderboard does. Of Int32 a missing value is null in the file.
ANSWER_COLUMNS = ("experiment", "method", "task", "evaluated", "model", "setting", "seed", "problem")
ANSWER_COUNTS = {"right": "int32", "samples": "int32", "right_distinct": "Int32", "solutions": "Int32"}
RENAMED = {"task": "trained_on", "evaluated": "task"}


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
    plain = render.as_prose if how == "md" else render.one_line
    texts = []
    for part in parts:
        if not part.shown.any_done():
            body = f"{bullet if how == 'latex' else ''}no cell is done\n"
        elif how == "latex":
            body = render_latex(part.comparisons())
        elif comparing:
            body = compare.render_comparisons(part.comparisons(), how, width)
        else:
            body = render.render_rows(sorted_part(part, sort), how, width, shown_columns)
        title = heading.format(plain(part.title)) if len(parts) > 1 else ""
        text = title + body
        for sentence in part.lacking:
            text += f"{terminal.folded(bullet + plain(sentence), width if how == 'table' else None)}\n"
        texts.append(text)
    return "\n".join(texts)


def render_data(parts: Sequence[Part], how: str, sort: str | None, comparing: bool) -> str:
    """Return all rows, or all comparisons, of the tables as one CSV or JSON."""
    records: list[Any] = []
    for part in parts:
        name = part.title if len(parts) > 1 else None
        for record in part.comparisons() if comparing else sorted_part(part, sort):
            records.append(replace(record, experiment=name))
    return render.as_json(records) if how == "json" else render.as_csv(records)


def sorted_part(part: Part, sort: str | None) -> list[LeaderboardRow]:
    return columns.sorted_rows(part.rows(), sort) if sort else part.rows()


def check_any_done(parts: Sequence[Part]) -> None:
    sentences = []
    for part in parts:
        if part.shown.any_done():
            return
        sentences += [f"{part.title}: no cell is done.", *part.lacking]
    raise UserError(" ".join(sentences))


# The form in which MLflow keeps tables


def as_mlflow_table(rows: Sequence[LeaderboardRow]) -> str:
    """Return the table in the form in which MLflow keeps tables; an interval is three columns.

    `log_table` of MLflow would append to the table of the time before.
    """
    names = header_names(rows, "Pass@K")
    lines = []
    for row in rows:
        line: dict[str, object] = {"method": row.method, **row.setting}
        line |= {"task": row.task, "model": row.model, "K": row.k}
        for column in map(COLUMNS.__getitem__, DEFAULT):
            header, value = column.header.format(**names), column.value(row)
            if isinstance(value, float | int | str):
                line[header] = value
                continue
            for suffix, name in (("", "mean"), (", low", "low"), (", high", "high")):
                number = getattr(value, name, None)
                # A number that JSON cannot hold is missing.
                line[header + suffix] = number if number is not None and math.isfinite(number) else None
        lines.append(line)
    return json.dumps({"columns": list(lines[0]), "data": [list(line.values()) for line in lines]}, allow_nan=False)


# LaTeX: methods are rows, with a column for each score of a task; needs the package booktabs


def render_latex(results: Sequence[Comparison]) -> str:
    """Return a table for each model, and each setting of further axes."""
    by_place: dict[str, list[Comparison]] = {}
    for result in results:
        by_place.setdefault(result.where, []).append(result)
    return "\n".join(latex_table(where, section) for where, section in by_place.items())


def latex_table(where: str, results: Sequence[Comparison]) -> str:
    import pandas

    by_method: dict[str, dict[tuple[str, str], Comparison]] = {}  # and by task and score
    columns: dict[tuple[str, str], None] = {}
    mixed: dict[str, None] = {}
    for result in results:
        by_method.setdefault(result.method, {})[result.task, result.score] = result
        columns[result.task, result.score] = None
        for why in result.mixed:
            mixed[f"% Marked: {render.one_line(why)}."] = None
    comments = [
        f"% {render.one_line(where)}: means with 95 % intervals over seeds and problems.",
        "% Bold: the highest mean of a method, and all that do not differ significantly from it (paired interval).",
        *mixed,
    ]
    lines = []
    for method, of_method in by_method.items():
        one, *_ = of_method.values()
        mark = MIXED_MARK if any(result.mixed for result in of_method.values()) else ""
        name = as_latex(method_text(method, mixed=(), trainer=one.trainer)) + mark
        numbers = [latex_cell(of_method.get(column)) for column in columns]
        lines.append([name, *numbers])
    headings = [as_latex(f"{task} {score}") for task, score in columns]
    table = pandas.DataFrame(lines, columns=["Method", *headings])
    text = table.to_latex(index=False, escape=False, column_format="l" + "c" * len(columns))
    return "\n".join([*comments, text])


def latex_cell(result: Comparison | None) -> str:
    if result is None or result.mean is None:
        return "--"
    number = format_estimate(result.mean).replace(" ±", r" \pm ").replace(" [", r"\;[")
    return rf"$\mathbf{{{number}}}$" if result.best else f"${number}$"


def as_latex(text: str) -> str:
    """Return a text in which no sign is a command."""
    return visible(text).translate(LATEX_SIGNS)


# Parquet: every answer count of a matrix; docs/statistics.md names the columns


def write_parquet(tables: Mapping[str, Frames], path: Path) -> None:
    """Write a row for each experiment, method, task, model, seed and problem that is done."""
    import pandas

    parts = [answer_rows(frames).assign(experiment=experiment) for experiment, frames in tables.items()]
    rows = pandas.concat(parts, ignore_index=True)[[*ANSWER_COLUMNS, *ANSWER_COUNTS]]
    with files.atomic(path) as file:
        rows.astype(ANSWER_COUNTS).rename(columns=RENAMED).to_parquet(file, index=False)


def answer_rows(frames: Frames) -> DataFrame:
    """Return the answers with the keys of their cells, by rows of the leaderboard and then by seed."""
    cells = done_cells(frames.cells)
    order = cells.groupby(ROW, sort=False).ngroup()
    cells = cells.assign(order=order).sort_values(["order", "seed"], kind="stable")
    cells = cells.assign(setting=[setting_label(dict(pairs)) for pairs in cells["setting"]])
    answers = frames.answers_of(cells)
    columns = ["problem", *ANSWER_COUNTS]
    of_cells = {name: [vars(of_cell)[name] for of_cell in answers] for name in columns}
    return cells.assign(**of_cells).explode(columns)


# Python: the leaderboard as a frame for scripts and notebooks


def leaderboard_frame(rows: Sequence[LeaderboardRow]) -> DataFrame:
    """Return the rows as a frame with the columns of csv; a missing value is NaN."""
    import pandas

    frame = records_frame(rows).infer_objects()
    # As lists, so that types are inferred.
    return pandas.DataFrame(
        {name: column.where(column.notna(), float("nan")).tolist() for name, column in frame.items()}
    )
