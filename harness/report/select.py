"""Which part of what MLflow holds a reader asked for, and what is said of the part that is missing."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.base.errors import UserError, nearest, shown
from harness.record.runs import Run
from harness.report import leaderboard
from harness.report.board import AXES, Board, Expected
from harness.report.leaderboard import Row
from harness.report.read import Experiment
from harness.report.render import render

TOLD = 4  # keys in a sentence, at most


def conditions(given: Sequence[str]) -> dict[str, str]:
    """Returns what --where asks for: values by key."""
    found = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not (key and equals):
            raise UserError(f"--where is {each!r}; write key=value, for example task=countdown")
        found[key] = value
    return found


def of_method(key: str) -> bool:
    return key.partition(".")[0] == "method"


def rows(
    board: Board, experiment: Experiment, wanted: Mapping[str, str], baseline: str | None, *, before: bool
) -> list[Row]:
    """Returns the rows of the cells that meet the conditions; the baseline is compared with even where its own row is
    not asked for."""
    board = board.against(baseline) if baseline else board
    values = {key: {value_of(each, key) for each in board.expected} - {None} for key in wanted}
    for key, value in wanted.items():
        if not values[key]:
            known = {*AXES, *(name for each in board.expected for name in each.params)}
            raise UserError(f"--where names {key!r}, which no cell has; {nearest(key, known)}")
        if value not in values[key]:
            raise UserError(f"--where {key} is {value!r}; {nearest(value, map(str, values[key]))}")
    visible = {
        each.method
        for each in board.expected
        if all(value_of(each, key) == wanted[key] for key in filter(of_method, wanted))
    }
    others = [key for key in wanted if not of_method(key)]
    expected = [
        each
        for each in board.expected
        if (each.method in visible or each.method == board.baseline)
        and all(value_of(each, key) == wanted[key] for key in others)
    ]
    if not visible or not expected:
        raise UserError("no cell meets all of " + " and ".join(f"--where {key}={wanted[key]}" for key in wanted))
    entries = leaderboard.entries_of(experiment.results([e.cell for e in expected]), expected, board.baseline)
    found = leaderboard.rows_of(entries, board.baseline, board.ks, before=before)
    return [row for row in found if row.method in visible or row.method == leaderboard.BEFORE]


def value_of(cell: Expected, key: str) -> str | None:
    return str(getattr(cell, key)) if key in AXES else cell.params.get(key)


# What is missing


def check_any(board: Board, experiment: Experiment) -> None:
    """Refuses a matrix without any run where its experiment holds runs of others, and says where these differ."""
    expected = {each.cell: each for each in board.expected}
    if not experiment.runs or any(run.tags["cell"] in expected for run in experiment.runs):
        return
    differences = [of_params(run, board.expected) for run in experiment.runs]
    least = min(differences, key=len)
    told = [f"{key} ({shown(theirs)}, not {shown(ours)})" for key, (theirs, ours) in list(least.items())[:TOLD]]
    more = f" and {len(least) - TOLD} more" if len(least) > TOLD else ""
    why = f"in {', '.join(told)}{more}" if told else "in what is no parameter: a version of a method, task or model"
    number = len(experiment.runs)
    raise UserError(
        f"no run of {experiment.name!r} is of this configuration; the experiment holds {number} "
        f"other{'s' * (number > 1)}, and the nearest differ{'s' * (number == 1)} {why}"
    )


def of_params(run: Run, expected: Sequence[Expected]) -> dict[str, tuple[str | None, str | None]]:
    """Returns where a run differs from the cell that is nearest to it: its value and the cell's, by key."""
    found = []
    for cell in expected:
        keys = dict.fromkeys([*cell.params, *run.params])
        pairs = {key: (run.params.get(key), cell.params.get(key)) for key in keys}
        found.append({key: pair for key, pair in pairs.items() if pair[0] != pair[1]})
    return min(found, key=len)


def lacking(board: Board, experiment: Experiment) -> list[str]:
    """Returns sentences on cells that are not done, and on what nobody told."""
    states = {run.tags["cell"]: run.tags.get("status", "") for run in experiment.runs}
    states |= dict.fromkeys(experiment.done, "done")
    counts = Counter(states.get(each.cell, "without a run") for each in board.expected)
    told = []
    if counts["done"] < len(board.expected):
        listed = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
        told.append(f"Of {len(board.expected)} cells: {listed}.")
    if board.baseline not in {each.method for each in board.expected}:
        told.append(f"No cell is of the baseline {board.baseline}, so nothing is compared with it.")
    if board.config is None:
        told.append(
            "Nobody told MLflow which cells were expected, so those that have a run count; `entrobench sync` tells it."
        )
    return told


# Several tables


@dataclass(frozen=True)
class Part:
    title: str
    rows: list[Row]
    lacking: list[str]


def title(board: Board, boards: Sequence[Board]) -> str:
    """Names the experiment, with the settings in which the matrices of that experiment differ."""
    shared = [dict(set.intersection(*(set(each.params.items()) for each in b.expected))) for b in boards]
    keys = sorted({key for each in shared for key in each if len({one.get(key) for one in shared}) > 1})
    own = shared[boards.index(board)]
    told = ", ".join(f"{key}={own[key]}" for key in keys if key in own and not key.startswith("method"))
    return f"{board.experiment}: {told}" if told else board.experiment


def text(parts: Sequence[Part], how: str, columns: Sequence[str]) -> str:
    """Returns the tables one after the other; in CSV and JSON, where there are several, rows name their table."""
    if all(not part.rows for part in parts):
        raise UserError(" ".join(f"{part.title}: no cell is done. {' '.join(part.lacking)}" for part in parts))
    if how in ("csv", "json"):
        several = len(parts) > 1
        every = [
            dataclasses.replace(row, experiment=part.title) if several else row for part in parts for row in part.rows
        ]
        return render(every, how, columns)
    told = []
    for part in parts:
        heading = f"## {part.title}\n\n" if how == "md" else f"{part.title}\n\n"
        bullet = "- " if how == "md" else ""
        body = render(part.rows, how, columns) if part.rows else "no cell is done\n"
        told.append(heading * (len(parts) > 1) + body + "".join(f"{bullet}{each}\n" for each in part.lacking))
    return "\n".join(told)
