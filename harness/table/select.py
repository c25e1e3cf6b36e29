"""Which part of what MLflow holds a reader asked for, and what is said of the part that is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.base.errors import UserError, nearest, shown
from harness.table import leaderboard
from harness.table.board import AXES, Board, Expected
from harness.table.leaderboard import Entry, Row
from harness.table.read import Experiment
from harness.tracking.runs import Run

TOLD = 4  # keys in a sentence, at most

Params = Mapping[str, str]
Differences = dict[str, tuple[str | None, str | None]]  # a run's value and the nearest cell's, by key


@dataclass(frozen=True)
class Asked:
    """Which cells, and what they are compared with."""

    where: Mapping[str, str] = field(default_factory=dict)  # values by key
    baseline: str | None = None  # None: as it was configured


@dataclass(frozen=True)
class Part:
    """The part of one matrix that was asked for, of which nothing is pooled with another."""

    title: str
    board: Board
    entries: list[Entry]  # with the baseline's, whether or not it was asked for
    visible: set[str]  # methods that were asked for
    lacking: list[str]  # sentences

    @property
    def shown(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.method in self.visible]

    def rows(self) -> list[Row]:
        rows = leaderboard.rows_of(self.entries, self.board.baseline, self.board.ks)
        return [row for row in rows if row.method in {*self.visible, leaderboard.BASE_MODEL}]


def conditions(given: Sequence[str]) -> dict[str, str]:
    """Returns what --where asks for: values by key."""
    found: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not (key and equals):
            raise UserError(f"--where is {each!r}; write key=value, for example task=countdown")
        if found.setdefault(key, value) != value:
            raise UserError(f"--where asks for {key}={found[key]} and {key}={value}, and no cell is both")
    return found


def parts_of_config(board: Board, experiment: Experiment, asked: Asked) -> list[Part]:
    """Returns the one table of a configuration."""
    check_any(board, experiment)
    return [part(board, experiment, asked, board.experiment)]


def parts_of(experiment: Experiment, asked: Asked) -> list[Part]:
    """Returns a table for each matrix that an experiment holds. Where there are several, those of them without what was
    asked for are left out, unless all are."""
    boards, parts, refused = experiment.boards(), [], []
    titles = titles_of(boards)
    for number, board in enumerate(boards):
        try:
            parts.append(part(board, experiment, asked, titles[number]))
        except UserError as error:
            if not asked.where and not asked.baseline:
                raise
            refused.append(error)
    if not parts:
        raise refused[0]
    return parts


def part(board: Board, experiment: Experiment, asked: Asked, title: str) -> Part:
    """Returns what was asked for of a matrix; the baseline is compared with even where its own row is not asked for."""
    board = board.against(asked.baseline) if asked.baseline else board
    wanted = asked.where
    for key, value in wanted.items():
        values = {found for each in board.expected if (found := value_of(each, key)) is not None}
        if not values:
            known = {*AXES, *(name for each in board.expected for name in each.params)}
            raise UserError(f"--where names {key!r}, which no cell has; {nearest(key, known)}")
        if value not in values:
            raise UserError(f"--where {key} is {value!r}; {nearest(value, values)}")
    of_methods, others = (
        {key: value for key, value in wanted.items() if of_method(key) == which} for which in (True, False)
    )
    visible = {each.method for each in board.expected if meets(each, of_methods)}
    expected = [each for each in board.expected if each.method in {*visible, board.baseline} and meets(each, others)]
    if not any(each.method in visible for each in expected):
        raise UserError("no cell meets all of " + " and ".join(f"--where {key}={wanted[key]}" for key in wanted))
    results = experiment.results([each.cell for each in expected])
    entries = leaderboard.entries_of(results, expected, board.baseline)
    return Part(title, board, entries, visible, lacking(board, experiment))


def meets(cell: Expected, wanted: Mapping[str, str]) -> bool:
    return all(value_of(cell, key) == value for key, value in wanted.items())


def of_method(key: str) -> bool:
    return key.partition(".")[0] == "method"


def value_of(cell: Expected, key: str) -> str | None:
    return str(getattr(cell, key)) if key in AXES else cell.params.get(key)


def titles_of(boards: Sequence[Board]) -> list[str]:
    """Names each matrix of an experiment, with the settings in which they differ; where they differ in what is no
    parameter, by the order of their age."""
    found = [title(board, boards) for board in boards]
    return [f"{each} ({found[i:].count(each)})" if found.count(each) > 1 else each for i, each in enumerate(found)]


def title(board: Board, boards: Sequence[Board]) -> str:
    shared = [dict(set.intersection(*(set(each.params.items()) for each in b.expected))) for b in boards]
    keys = sorted({key for each in shared for key in each if len({one.get(key) for one in shared}) > 1})
    own = shared[boards.index(board)]
    told = ", ".join(f"{key}={own[key]}" for key in keys if key in own and not of_method(key))
    return f"{board.experiment}: {told}" if told else board.experiment


# What is missing


def check_any(board: Board, experiment: Experiment) -> None:
    """Refuses a matrix without any run where its experiment holds runs of others, and says where these differ."""
    expected = {each.cell for each in board.expected}
    if not experiment.runs or any(run.tags["cell"] in expected for run in experiment.runs):
        return
    least = differences(experiment.runs, board.expected)
    told = [f"{key} ({shown(theirs)}, not {shown(ours)})" for key, (theirs, ours) in list(least.items())[:TOLD]]
    more = f" and {len(least) - TOLD} more" if len(least) > TOLD else ""
    why = f"in {', '.join(told)}{more}" if told else "in what is no parameter: a version of a method, task or model"
    number = len(experiment.runs)
    raise UserError(
        f"no run of {experiment.name!r} is of this configuration; the experiment holds {number} "
        f"other{'s' * (number > 1)}, and the nearest differ{'s' * (number == 1)} {why}"
    )


def differences(runs: Sequence[Run], expected: Sequence[Expected]) -> Differences:
    """Returns where the run and the cell that are nearest to each other differ. There are many seeds and few settings,
    so these are compared first."""
    ours, theirs = (by_settings(params) for params in ([e.params for e in expected], [run.params for run in runs]))
    pairs = ((difference(dict(a), dict(b)), a, b) for a in theirs for b in ours)
    least, a, b = min(pairs, key=lambda pair: (len(pair[0]), not theirs[pair[1]] & ours[pair[2]]))
    if not theirs[a] & ours[b]:
        least["seed"] = (", ".join(sorted(theirs[a])), ", ".join(sorted(ours[b])))
    return least


def by_settings(every: Iterable[Params]) -> dict[tuple[tuple[str, str], ...], set[str]]:
    """Returns the seeds of each set of parameters."""
    found: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for params in every:
        settings = tuple((key, value) for key, value in params.items() if key != "seed")
        found.setdefault(settings, set()).add(params.get("seed", ""))
    return found


def difference(theirs: Params, ours: Params) -> Differences:
    pairs = {key: (theirs.get(key), ours.get(key)) for key in {**ours, **theirs}}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def lacking(board: Board, experiment: Experiment) -> list[str]:
    """Returns sentences on cells that are not done, and on what nobody told."""
    states = {run.tags["cell"]: run.tags["status"] for run in experiment.runs}
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
            "No summary in MLflow says which cells were expected, so what the newest run's configuration means counts; "
            "`entrobench sync` writes one."
        )
    return told + left_out(board, experiment)


def left_out(board: Board, experiment: Experiment) -> list[str]:
    number = len(experiment.others(board))
    if not number:
        return []
    runs = "1 run of another cell" if number == 1 else f"{number} runs of other cells"
    return [f"{runs} with the same settings {'is' if number == 1 else 'are'} left out."]
