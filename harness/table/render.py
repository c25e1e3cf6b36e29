"""The leaderboard as a table for the terminal or as Markdown, and all of its numbers as CSV or JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from harness.base import terminal
from harness.cells.log import NO_SIGNAL
from harness.config import PUBLISHED, TUNED
from harness.table.columns import (
    BETTER,
    COLUMNS,
    DEFAULT,
    GENERAL_NAMES,
    MIXED,
    NEAR_BOUND,
    WORSE,
    collapse_text,
    table_lines,
)
from harness.table.frames import BASE_MODEL
from harness.table.leaderboard import LeaderboardRow, place_text
from harness.table.statistics import NEAR_BOUND as NEAR_BOUND_PROBLEMS
from harness.table.verified import ANSWERS, AUTHOR, COUNTED, COUNTS, JUDGED, PROMISE, REPLAY, REPORTED

if TYPE_CHECKING:
    from pandas import DataFrame

FLAG = " †"
TWO_SEEDS = "Two seeds tell little: intervals are wide."
# Characters that end a cell of Markdown, or begin a link, an image, code, emphasis or HTML in it.
MARKDOWN = re.compile(r"[\\|`*\[\]]|<(?=[a-zA-Z/!])")
PROSE = re.compile(r"[\\\[\]]|<(?=[a-zA-Z/!])")  # the same in our own sentences, which may have code and emphasis
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # a spreadsheet computes a cell that begins with one of these

# A title, the header with the lines, and the columns that a narrow terminal drops, the least important first.
Table = tuple[str, list[list[str]], Sequence[Collection[str]]]


def render_rows(
    rows: Sequence[LeaderboardRow], how: str, width: int | None = None, columns: Sequence[str] = DEFAULT
) -> str:
    """Return the rows as a table or as Markdown (md); a table drops the columns that do not fit into `width`."""
    sections: dict[tuple[str, str], list[LeaderboardRow]] = {}
    for row in rows:
        sections.setdefault((row.task, row.model), []).append(row)
    tables: list[Table] = []
    for (task, model), section in sections.items():
        title = f"{task}, {model}"
        if any(map(remarks, section)):
            title += FLAG
        lines = table_lines(section, columns)
        tables.append((title, lines, drop_order(lines[0])))
    above = [f"{flag}." for flag in untrained_flags(rows)]
    return render_document(tables, row_notes(rows, columns), how, width, above=above)


def render_document(
    tables: Sequence[Table], notes: Sequence[str], how: str, width: int | None = None, *, above: Sequence[str] = ()
) -> str:
    """Return tables with their notes; `above`: sentences before them."""
    parts = [f"{as_text(sentence, how, width)}\n" for sentence in above]
    for title, lines, order in tables:
        if how == "md":
            parts.append(as_markdown(title, lines))
        else:
            parts.append(terminal.boxed(title, lines, width, order))
    bullet = "- " if how == "md" else ""
    parts += [f"{bullet}{as_text(note, how, width)}" for note in notes]
    return "\n".join([*parts, ""])


def as_text(sentence: str, how: str, width: int | None) -> str:
    """Return a sentence of ours in Markdown, or folded to the width of a terminal."""
    return as_prose(sentence) if how == "md" else terminal.folded(terminal.visible(sentence), width)


# Rows and comparisons as data


def as_json(records: Sequence[Any]) -> str:
    # Not from a frame: estimates are objects here, and three columns everywhere else.
    plain = [finite_values(dataclasses.asdict(record)) for record in records]
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


def finite_values(value: Any) -> Any:
    """Return the value with null for numbers that JSON cannot hold, such as the entropy of a run that diverged."""
    if isinstance(value, dict):
        return {key: finite_values(child) for key, child in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def as_csv(records: Sequence[Any]) -> str:
    import pandas

    frame = records_frame(records)
    # Not by DataFrame.map, which would turn a column of integers and missing values into floats.
    cells = {name: list(map(as_csv_cell, frame[name])) for name in frame}
    text: str = pandas.DataFrame(cells, dtype="object").to_csv(index=False, lineterminator="\n")
    return text


def as_csv_cell(value: Any) -> Any:
    """Return a text that a spreadsheet shows as it is: with an apostrophe in front if it would be a formula."""
    if isinstance(value, str):
        apostrophe = "'" if value.startswith(FORMULA) else ""
        return terminal.visible(apostrophe + value)
    # pandas leaves missing values and NaN empty, but an entropy that is NaN was measured.
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value


def records_frame(records: Sequence[Any]) -> DataFrame:
    """Return rows or comparisons as a frame with a column for each number; a missing value is None."""
    import pandas

    lines = [dict(flat_fields(dataclasses.asdict(record))) for record in records]
    longest_first = sorted(lines, key=len, reverse=True)  # a row without results has few columns
    names = dict.fromkeys(chain.from_iterable(longest_first))
    # Not from the lines at once: pandas would write NaN for a missing value.
    columns = {}
    for name in names:
        columns[name] = [line.get(name) for line in lines]
    return pandas.DataFrame(columns, dtype="object")


def flat_fields(value: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield columns such as pass_at_k.16.low; a missing estimate has none, a missing limit is empty."""
    for key, child in value.items():
        if isinstance(child, dict):
            yield from flat_fields(child, f"{prefix}{key}.")
        elif isinstance(child, list):
            yield f"{prefix}{key}", "; ".join(child)
        elif child is not None or key in ("low", "high"):
            yield f"{prefix}{key}", child


# The sentences below a table


def row_notes(rows: Sequence[LeaderboardRow], columns: Collection[str] = DEFAULT) -> list[str]:
    """Return the sentences below the tables: how to read these columns, and warnings about these rows."""
    scores, entropies = {"avg_at_k", "delta_to_baseline"}, {"entropy_initial", "entropy_final"}
    differences = {"delta_to_baseline", "delta_pass_at_k"}
    intervals = ["± or [low, high]: 95 % interval over seeds and problems."]
    if scores.intersection(columns):
        intervals.append("Avg@K: the mean over all samples.")
    if entropies.intersection(columns):
        intervals.append("Entropy: the geometric mean over seeds, with its 95 % interval.")
    texts = [" ".join(intervals)]
    if differences.intersection(columns):
        texts.append(
            f"{BETTER} {WORSE}: the single interval of the difference from {rows[0].baseline}, paired by seed and "
            "problem, excludes 0."
        )
    if "verdict" in columns:
        texts.append(verdict_note(rows[0].baseline))
    if "right_distinct" in columns:
        texts.append(
            "Distinct right: how many distinct right answers to a problem its samples hold, mean over problems."
        )
    texts += [*ruleset_notes(rows), *trainer_notes(rows)]
    if differences.intersection(columns) and any(row.near_bound for row in rows):
        texts.append(doubt_near_bound(rows[0].baseline))
    if any(row.method == BASE_MODEL for row in rows):
        texts.append(f"{BASE_MODEL}: the model before training, by its evaluation at step 0.")
    texts += dict.fromkeys(f"{row.method} = {row.made_of}" for row in rows if row.made_of)
    texts += mixed_notes(rows)
    if any(row.seeds_done == 1 for row in rows):
        texts.append("One seed cannot tell how much seeds differ: rows with one seed have no interval and no mark.")
    if any(row.seeds_done == 2 for row in rows):
        texts.append(f"{TWO_SEEDS} `--compare` says which difference would be detected.")
    if any(row.seeds_done < row.seeds_expected for row in rows):
        texts.append("Not every expected cell is done; differences use the seeds that both have.")
    shown = [getattr(row, name) for row in rows for name in entropies.intersection(columns)]
    if any(entropy is not None and math.isnan(entropy.mean) for entropy in shown):
        texts.append("nan: at a seed of the row the entropy was no number, or was not recorded; `report` shows where.")
    for row in rows:
        if row.collapsed:
            place = place_text(row.method, row.task, row.where)
            texts.append(f"{place}: the entropy of {collapse_text(row)} fell so low that training ended there.")
    return [*texts, *sorted({f"{FLAG.strip()} {row.task}: {flag}" for row in rows for flag in remarks(row)})]


def untrained_flags(rows: Sequence[LeaderboardRow]) -> list[str]:
    """Return the flags that say that a cell learned nothing, which stand above a table."""
    return list(dict.fromkeys(flag for row in rows for flag in row.flags if NO_SIGNAL in flag))


def remarks(row: LeaderboardRow) -> list[str]:
    """Return the other flags of a row."""
    return [flag for flag in row.flags if NO_SIGNAL not in flag]


def verdict_note(baseline: str) -> str:
    return (
        f"verdict: a method wins if its gain in Pass@K over {baseline} is significant at 5 % after Holm's correction "
        "for the methods of the table, with no such loss in Avg@K; with such a loss it trades. It loses if its loss in "
        "Pass@K is significant in this way."
    )


RULESETS = {
    PUBLISHED: "methods have their published constants, and the options that the configuration names",
    TUNED: "options were chosen by one rule, from as many candidates of each method, on validation problems",
}


# Below tables of rows and of comparisons


def mixed_notes(rows: Sequence[Any]) -> list[str]:
    """Return a sentence on each way in which cells are not of one experiment."""
    return list(dict.fromkeys(f"{MIXED} {row.task}, {row.where}: {why}." for row in rows for why in row.mixed))


def trainer_notes(rows: Sequence[Any]) -> list[str]:
    """Return a sentence on each trainer of rows; our own needs none."""
    named = dict.fromkeys(row.trainer for row in rows if row.trainer)
    return [f"Trained by {name}: with train.backend={name}, not by entrobench's own trainer." for name in named]


def ruleset_notes(rows: Sequence[Any]) -> list[str]:
    """Return sentences on how options were chosen, and on how far the rows of packs were verified."""
    sentences: dict[str, None] = {}  # in their order, each once
    methods_by_mark: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.ruleset:
            sentences[f"Ruleset {row.ruleset}: {RULESETS[row.ruleset]}."] = None
        if row.checked:
            methods_by_mark.setdefault(row.checked, {})[row.method] = None
    if not methods_by_mark:
        return list(sentences)
    # Quoted, as a method with options may have commas itself.
    parts = [f"{mark}: {', '.join(map(repr, methods))}" for mark, methods in methods_by_mark.items()]
    of_packs = f"Rows of packs, as far as `entrobench verify` has checked them: {'; '.join(parts)}."
    return [*sentences, of_packs, *promise_notes(methods_by_mark)]


def promise_notes(marks: Iterable[str]) -> list[str]:
    """Return sentences on what the marks of a table cover, column by column."""
    headers = {}
    for source, names in PROMISE.items():
        headers[source] = "; ".join(COLUMNS[name].header.format(**GENERAL_NAMES) for name in names)
    kinds = {mark if mark in (REPORTED, COUNTED) else JUDGED for mark in marks}
    notes = []
    if JUDGED in kinds:
        notes.append(f"Recomputed from the answers in rows judged again: {headers[COUNTS]}; {headers[ANSWERS]}.")
    if COUNTED in kinds:
        notes.append(
            f"Recomputed from counts, without judging an answer, in rows with {COUNTED}: {headers[COUNTS]}. There as "
            f"the author states: {headers[ANSWERS]}."
        )
    if kinds != {REPORTED}:
        notes.append(
            f"As the author states, unless replayed, and then for these steps of one cell: {headers[REPLAY]}. Never "
            f"verified: {headers[AUTHOR]}."
        )
    return notes


def doubt_near_bound(baseline: str) -> str:
    """Return the note on differences between two methods near 0 or 1."""
    return (
        f"{NEAR_BOUND}: the method and {baseline} both differ from 0 or 1 by less than {NEAR_BOUND_PROBLEMS} problems' "
        "worth; there the interval of a difference may be too short, but rarely has the wrong sign."
    )


def as_markdown(title: str, lines: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown; pandas' own needs one more package, and has other padding and escapes."""
    header, *body = lines
    rule = ["---", *["---:"] * (len(header) - 1)]
    rows = [map(as_cell, header), rule, *(map(as_cell, line) for line in body)]
    return f"**{as_cell(title)}**\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def as_cell(text: str) -> str:
    """Return a text as a cell of Markdown, without any markup in effect."""
    return re.sub(MARKDOWN, r"\\\g<0>", one_line(text))


def as_prose(text: str) -> str:
    """Return a sentence of ours for Markdown, in which quoted names cannot become links or HTML."""
    return re.sub(PROSE, r"\\\g<0>", one_line(text))


def one_line(text: str) -> str:
    """Return a text on one line, with its control characters written out."""
    return terminal.visible(" ".join(text.split()))


def drop_order(header: Sequence[str]) -> list[list[str]]:
    """List the columns that a narrow terminal drops, the least important first.

    The difference of Pass@K and the verdict stay longest, since they are the main results.
    """
    # Headers of differences are a score and the baseline, as `Avg@K - grpo`; the last one is Pass@K's by default.
    differences = [[name] for name in header if " - " in name]
    first = [["options"], ["seeds"], ["entropy, start"], ["distinct right"]]
    return [*first, *differences[:-1], ["entropy, end"], ["Avg@K"]]
