"""The columns that a table for people may have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.base.errors import UserError, nearest
from harness.statistics import Estimate
from harness.table.leaderboard import BASE_MODEL, Row

BETTER, WORSE = "▲", "▼"
NEAR_BOUND = "‡"  # at a difference whose interval may be too short, since both methods are near 0 or 1
MIXED = "§"  # behind a method whose cells, or the baseline's with them, are of different code or base models


@dataclass(frozen=True)
class Column:
    header: str  # with {baseline}, {headline}, which is Pass@ and its K, and {device}
    text: Callable[[Row], str]
    value: Callable[[Row], Estimate | float | str | None]  # that rows are sorted by; None: there is none yet


def shown(estimate: Estimate | None, sign: str = "") -> str:
    if estimate is None:
        return ""
    mean = f"{estimate.mean:{sign}.3f}"
    if estimate.low is None or estimate.high is None or math.isnan(estimate.mean):
        return mean
    if symmetric(estimate):
        return f"{mean} ±{estimate.high - estimate.mean:.3f}"
    return f"{mean} [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"


def symmetric(estimate: Estimate) -> bool:
    """Return whether an interval reaches as far above the mean as below."""
    assert estimate.low is not None
    assert estimate.high is not None
    return math.isclose(estimate.high - estimate.mean, estimate.mean - estimate.low, rel_tol=1e-6)


def compared(estimate: Estimate | None, row: Row, score: str) -> str:
    if estimate is None:
        return ""
    if row.method == row.baseline:
        return "baseline"
    marks = [NEAR_BOUND * (score in row.near_bound), mark(estimate)]  # the page reads the sign's mark off the end
    return " ".join([shown(estimate, "+"), *filter(None, marks)])


def mark(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None or estimate.low <= 0 <= estimate.high:
        return ""
    return BETTER if estimate.low > 0 else WORSE


def plain(estimate: Estimate | None, form: str) -> str:
    """Returns the mean alone, where nobody asks how far it is off."""
    return "" if estimate is None else format(estimate.mean, form)


COLUMNS: dict[str, Column] = {
    "avg": Column("Avg@K", lambda row: shown(row.avg_at_k), lambda row: row.avg_at_k),
    "pass": Column("{headline}", lambda row: shown(row.pass_at_k.get(row.k)), lambda row: row.pass_at_k.get(row.k)),
    "delta": Column(
        "Avg@K - {baseline}",
        lambda row: compared(row.delta_to_baseline, row, "Avg@K"),
        lambda row: row.delta_to_baseline,
    ),
    "delta_pass": Column(
        "{headline} - {baseline}",
        lambda row: compared(row.delta_pass_at_k.get(row.k), row, f"Pass@{row.k}"),
        lambda row: row.delta_pass_at_k.get(row.k),
    ),
    "entropy_first": Column("entropy, start", lambda row: shown(row.entropy_initial), lambda row: row.entropy_initial),
    "entropy_last": Column("entropy, end", lambda row: shown(row.entropy_final), lambda row: row.entropy_final),
    "entropy_kept": Column("entropy kept", lambda row: plain(row.entropy_kept, ".1%"), lambda row: row.entropy_kept),
    "right_distinct": Column("distinct right", lambda row: shown(row.right_distinct), lambda row: row.right_distinct),
    "coverage": Column("solutions found", lambda row: shown(row.coverage), lambda row: row.coverage),
    "distinct_answers": Column(
        "distinct answers", lambda row: shown(row.distinct_answers), lambda row: row.distinct_answers
    ),
    "after_answer": Column(
        "text after answer", lambda row: plain(row.after_answer, ".1%"), lambda row: row.after_answer
    ),
    "distinct": Column("distinct responses", lambda row: shown(row.distinct), lambda row: row.distinct),
    "dropped": Column("dropped", lambda row: shown(row.dropped), lambda row: row.dropped),
    "length": Column("length", lambda row: plain(row.length, ".1f"), lambda row: row.length),
    "hours": Column("{device}-hours a cell", lambda row: plain(row.hours, ".3g"), lambda row: row.hours),
    "tokens": Column("tokens a cell", lambda row: plain(row.tokens, ",.0f"), lambda row: row.tokens),
    "seeds": Column("seeds", lambda row: f"{row.seeds_done} of {row.seeds_expected}", lambda row: row.seeds_done),
    "collapsed": Column("collapsed", lambda row: steps_of(row), lambda row: len(row.collapsed)),
    "contamination": Column("problems", lambda row: "; ".join(row.flags), lambda row: "; ".join(row.flags)),
    "version": Column("version", lambda row: row.version or "", lambda row: row.version),
    "base_model": Column("base model", lambda row: row.base_model or "", lambda row: row.base_model),
}
DEFAULT = ("avg", "pass", "delta", "delta_pass", "right_distinct", "entropy_first", "entropy_last", "seeds")


def steps_of(row: Row) -> str:
    """Says how many seeds ended early, since their entropy was too low, and at which steps."""
    if not row.collapsed:
        return ""
    steps = ", ".join(str(row.collapsed[seed]) for seed in sorted(row.collapsed))
    return f"{len(row.collapsed)} of {row.seeds_done} at step{'s' * (len(row.collapsed) > 1)} {steps}"


def cells_of(rows: Sequence[Row], columns: Sequence[str] = DEFAULT) -> list[list[str]]:
    """The header and the lines of a table for people; task, model and k are columns where they vary."""
    first = rows[0]
    varied = [axis for axis in ("task", "model", "k") if len({getattr(row, axis) for row in rows}) > 1]
    further = list(dict.fromkeys(key for row in rows for key in row.setting))
    names = names_of(rows, "Pass@k" if "k" in varied else f"Pass@{first.k}")
    chosen = [COLUMNS[name] for name in columns]
    lines = [
        [
            marked(row.method, row.mixed),
            *(row.setting.get(key, "") for key in further),
            *(str(getattr(row, axis)) for axis in varied),
            *(column.text(row) for column in chosen),
        ]
        for row in rows
    ]
    return [["method", *further, *varied, *(column.header.format(**names) for column in chosen)], *lines]


def marked(method: str, mixed: Sequence[str]) -> str:
    """Return the name of a method as a table shows it."""
    return f"{method} {MIXED}" if mixed else method


def names_of(rows: Sequence[Row], headline: str) -> dict[str, str]:
    """Returns what headers name."""
    return {"baseline": rows[0].baseline, "headline": headline, "device": device_of(rows)}


def device_of(rows: Sequence[Row]) -> str:
    """Names what hours are of: a core counts as a CPU."""
    names = {"cpu": "CPU", "cuda": "GPU"}
    found = {names.get(row.device, "device") for row in rows if row.device}
    return found.pop() if len(found) == 1 else "device"


def known(option: str, names: Sequence[str]) -> list[str]:
    """Returns the names of columns that an option asks for."""
    for name in names:
        if name not in COLUMNS:
            raise UserError(f"{option} is {name!r}; {nearest(name, COLUMNS)}")
    return list(names)


def ordered(rows: Sequence[Row], column: str) -> list[Row]:
    """Return the base models, then the rows with the largest value first, rows without one last; texts by alphabet."""

    def place(row: Row) -> tuple[bool, bool, float, str]:
        trained, value = row.method != BASE_MODEL, COLUMNS[column].value(row)
        if isinstance(value, Estimate):
            value = value.mean
        if value is None or value != value:
            return (trained, True, 0.0, "")
        return (trained, False, 0.0, value) if isinstance(value, str) else (trained, False, -value, "")

    return sorted(rows, key=place)
