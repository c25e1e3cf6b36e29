"""The columns of a table for people: their names, which are the same in csv, json and Python, and their headers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.table.leaderboard import BASE_MODEL, LeaderboardRow
from harness.table.statistics import Estimate

BETTER, WORSE = "▲", "▼"
NEAR_BOUND = "‡"  # at a difference whose interval may be too short, since both methods are near 0 or 1
MIXED = "§"  # after a method if its and the baseline's cells have different code or base models


@dataclass(frozen=True)
class TableColumn:
    """A column: its header, and the text and the value of each row."""

    header: str  # with {baseline}, {headline} (Pass@ and its K) and {device}
    text: Callable[[LeaderboardRow], str]
    value: Callable[[LeaderboardRow], Estimate | float | str | None]  # the key of sorting; None: no value yet


def format_estimate(estimate: Estimate | None, sign: str = "") -> str:
    """Return an estimate as `0.500 ±0.010`, or with its limits if they are not symmetric."""
    if estimate is None:
        return ""
    mean = f"{estimate.mean:{sign}.3f}"
    if estimate.ends is None or math.isnan(estimate.mean):
        return mean
    low, high = estimate.ends
    # Rounding makes the two distances differ; those of an interval of logarithms, or of a cut one, differ by far more.
    if math.isclose(high - estimate.mean, estimate.mean - low, rel_tol=1e-6):
        return f"{mean} ±{high - estimate.mean:.3f}"
    # The logarithms of a collapsed and of a sound seed differ so much that the interval ends at 1e129.
    decimals = ".3f" if high < 1e6 else ".1e"
    return f"{mean} [{low:{sign}.3f}, {high:{sign}{decimals}}]"


def format_difference(estimate: Estimate | None, row: LeaderboardRow, score: str) -> str:
    """Return the difference of a score to the baseline, with its marks."""
    if estimate is None:
        return ""
    if row.method == row.baseline:
        return "baseline"
    parts = [format_estimate(estimate, "+")]
    if score in row.near_bound:
        parts.append(NEAR_BOUND)
    if sign := sign_mark(estimate):
        parts.append(sign)  # last, since the page reads it from the end
    return " ".join(parts)


def sign_mark(estimate: Estimate) -> str:
    """Return the mark of a difference whose single interval excludes 0; the verdict is another question."""
    low, high = estimate.ends or (0.0, 0.0)
    if low <= 0 <= high:
        return ""
    return BETTER if low > 0 else WORSE


def of_field(name: str, header: str, text: Callable[[Any], str] = format_estimate) -> TableColumn:
    """Return the column of a field of rows, by default an estimate that is shown with its interval."""
    return TableColumn(header, lambda row: text(getattr(row, name)), lambda row: getattr(row, name))


def mean_as(form: str) -> Callable[[Estimate | None], str]:
    """Return the text of estimates without their intervals."""
    return lambda estimate: "" if estimate is None else format(estimate.mean, form)


def share_text(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def text_or_empty(text: str | None) -> str:
    return text or ""


# By their names in csv, json and Python: fields of `leaderboard.LeaderboardRow`.
COLUMNS: dict[str, TableColumn] = {
    "avg_at_k": of_field("avg_at_k", "Avg@K"),
    "pass_at_k": TableColumn(
        "{headline}", lambda row: format_estimate(row.pass_at_k.get(row.k)), lambda row: row.pass_at_k.get(row.k)
    ),
    "delta_to_baseline": TableColumn(
        "Avg@K - {baseline}",
        lambda row: format_difference(row.delta_to_baseline, row, "Avg@K"),
        lambda row: row.delta_to_baseline,
    ),
    "delta_pass_at_k": TableColumn(
        "{headline} - {baseline}",
        lambda row: format_difference(row.delta_pass_at_k.get(row.k), row, f"Pass@{row.k}"),
        lambda row: row.delta_pass_at_k.get(row.k),
    ),
    "verdict": of_field("verdict", "verdict", text_or_empty),
    "entropy_initial": of_field("entropy_initial", "entropy, start"),
    "entropy_final": of_field("entropy_final", "entropy, end"),
    "entropy_kept": of_field("entropy_kept", "entropy kept", mean_as(".1%")),
    "right_distinct": of_field("right_distinct", "distinct right"),
    "coverage": of_field("coverage", "solutions found"),
    "distinct_answers": of_field("distinct_answers", "distinct answers"),
    "after_answer": of_field("after_answer", "text after answer", mean_as(".1%")),
    "distinct": of_field("distinct", "distinct responses"),
    "dropped": of_field("dropped", "dropped"),
    "length": of_field("length", "length", mean_as(".1f")),
    "hours": of_field("hours", "{device}-hours a cell", mean_as(".3g")),
    "tokens": of_field("tokens", "tokens a cell", mean_as(",.0f")),
    "seeds_done": TableColumn(
        "seeds", lambda row: f"{row.seeds_done} of {row.seeds_expected}", lambda row: row.seeds_done
    ),
    "collapsed": TableColumn("collapsed", lambda row: collapse_text(row), lambda row: len(row.collapsed)),
    "collapsed_share": of_field("collapsed_share", "seeds collapsed", share_text),
    "exploded_share": of_field("exploded_share", "seeds exploded", share_text),
    "options": of_field("options", "options", text_or_empty),
    "flags": TableColumn("problems", lambda row: "; ".join(row.flags), lambda row: "; ".join(row.flags)),
    "version": of_field("version", "version", text_or_empty),
    "base_model": of_field("base_model", "base model", text_or_empty),
    "ruleset": of_field("ruleset", "ruleset", text_or_empty),
    "checked": of_field("checked", "checked", text_or_empty),
}
DEFAULT = (
    "avg_at_k",
    "pass_at_k",
    "delta_to_baseline",
    "delta_pass_at_k",
    "verdict",
    "right_distinct",
    "entropy_initial",
    "entropy_final",
    "seeds_done",
)
# What headers name, where no table says it.
GENERAL_NAMES = {"baseline": "baseline", "headline": "Pass@K", "device": "GPU or CPU"}


def collapse_text(row: LeaderboardRow) -> str:
    """Say how many seeds ended early, since their entropy was too low, and at which steps."""
    if not row.collapsed:
        return ""
    steps = [str(step) for _, step in sorted(row.collapsed.items())]
    word = "step" if len(steps) == 1 else "steps"
    return f"{len(steps)} of {row.seeds_done} at {word} {', '.join(steps)}"


def table_lines(rows: Sequence[LeaderboardRow], columns: Sequence[str] = DEFAULT) -> list[list[str]]:
    """Return the header and the lines of a table for people; task, model and k are columns where they vary."""
    varied = []
    for axis in ("task", "model", "k"):
        values = {getattr(row, axis) for row in rows}
        if len(values) > 1:
            varied.append(axis)
    further = dict.fromkeys(axis for row in rows for axis in row.setting)  # in their order
    headline = "Pass@k" if "k" in varied else f"Pass@{rows[0].k}"
    names = header_names(rows, headline)
    if columns is DEFAULT and any(row.options for row in rows):
        columns = [*columns, "options"]
    chosen = list(map(COLUMNS.__getitem__, columns))
    lines = [["method", *further, *varied, *(column.header.format(**names) for column in chosen)]]
    for row in rows:
        line = [method_text(row.method, row.mixed, row.trainer)]
        line += [row.setting.get(axis, "") for axis in further]
        line += [str(getattr(row, axis)) for axis in varied]
        line += [column.text(row) for column in chosen]
        lines.append(line)
    return lines


def method_text(method: str, mixed: Sequence[str], trainer: str | None = None) -> str:
    """Return the name of a method as a table shows it."""
    parts = [method]
    if trainer:
        parts.append(f"(trained by {trainer})")
    if mixed:
        parts.append(MIXED)
    return " ".join(parts)


def header_names(rows: Sequence[LeaderboardRow], headline: str) -> dict[str, str]:
    """Return what headers name; the device is that of hours, where a core counts as a CPU."""
    devices = {row.device for row in rows if row.device}
    only = devices.pop() if len(devices) == 1 else ""
    device = {"cpu": "CPU", "cuda": "GPU"}.get(only, "device")  # several, or unknown
    return {"baseline": rows[0].baseline, "headline": headline, "device": device}


def sorted_rows(rows: Sequence[LeaderboardRow], column: str) -> list[LeaderboardRow]:
    """Return the base models, then the rows with the largest value first, rows without one last; texts by alphabet."""

    # By these in turn: trained or not, without a value or with one, the number (largest first), the text.
    def place(row: LeaderboardRow) -> tuple[bool, bool, float, str]:
        trained, value = row.method != BASE_MODEL, COLUMNS[column].value(row)
        if isinstance(value, Estimate):
            value = value.mean
        if value is None or value == "" or value != value:  # NaN is unequal to itself
            return (trained, True, 0.0, "")
        if isinstance(value, str):
            return (trained, False, 0.0, value)
        return (trained, False, -value, "")

    return sorted(rows, key=place)
