"""The part of an experiment that a reader asks for, and sentences on the cells that are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.base.errors import UserError, nearest, shown
from harness.table import compare, leaderboard
from harness.table.board import AXES, Board, Expected
from harness.table.compare import Comparison
from harness.table.experiment import Experiment
from harness.table.frames import BASE_MODEL, Frames, read_frames
from harness.table.leaderboard import LeaderboardRow
from harness.terminal.units import plural
from harness.tracking.runs import Run

KEYS_LISTED = 4  # keys in a sentence, at most

Params = Mapping[str, str]
Settings = tuple[tuple[str, str], ...]
Differences = dict[str, tuple[str | None, str | None]]  # a run's value and the nearest cell's, by key


@dataclass(frozen=True)
class Part:
    """The selected part of one matrix, of which nothing is pooled with another."""

    title: str
    board: Board
    frames: Frames  # with the baseline's cells, whether or not they are shown
    visible: set[str]  # the selected methods
    lacking: list[str]  # sentences

    @property
    def shown(self) -> Frames:
        return self.frames.restricted(self.visible)

    def rows(self) -> list[LeaderboardRow]:
        rows = leaderboard.leaderboard_rows(self.frames, self.board.baseline, self.board.ks)
        return [row for row in rows if row.method in {*self.visible, BASE_MODEL}]

    def comparisons(self) -> list[Comparison]:
        return compare.comparisons(self.frames, self.board.baseline, self.board.ks)


def conditions(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of --where, by key."""
    wanted: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not (key and equals):
            raise UserError(f"--where is {argument!r}; write key=value, for example task=countdown")
        if wanted.setdefault(key, value) != value:
            raise UserError(f"--where asks for {key}={wanted[key]} and {key}={value}, and no cell is both")
    return wanted


def part_of_config(board: Board, experiment: Experiment, where: Params, baseline: str | None) -> Part:
    """Return the one table of a configuration; `baseline`: None for the configured one."""
    check_any_run(board, experiment)
    return part_of_board(board, experiment, where, baseline, board.experiment)


def part_of_packs(experiment: Experiment, where: Params, baseline: str | None) -> Part:
    """Return the one table of packs."""
    [board] = experiment.boards()
    return part_of_board(board, experiment, where, baseline, board.experiment)


def parts_of_experiment(experiment: Experiment, where: Params, baseline: str | None) -> list[Part]:
    """Return a table for each matrix that an experiment holds.

    Of several matrices, those that do not have the selected values are left out, unless none has them.
    """
    boards = experiment.boards()
    parts, refusals = [], []
    for board, title in zip(boards, board_titles(boards), strict=True):
        try:
            parts.append(part_of_board(board, experiment, where, baseline, title))
        except UserError as error:
            if not where and not baseline:
                raise
            refusals.append(error)
    if not parts:
        raise refusals[0]
    return parts


def part_of_board(board: Board, experiment: Experiment, where: Params, baseline: str | None, title: str) -> Part:
    """Return the selected part of a matrix; the baseline is compared with even if its own row is not selected."""
    if baseline:
        board = board.against(baseline)
    check_conditions(board, where)
    on_methods = {key: value for key, value in where.items() if is_of_method(key)}
    on_others = {key: value for key, value in where.items() if not is_of_method(key)}
    visible = {each.method for each in board.expected if meets(each, on_methods)}
    compared = {*visible, board.baseline}
    expected = [each for each in board.expected if each.method in compared and meets(each, on_others)]
    if not any(each.method in visible for each in expected):
        raise UserError("no cell meets all of " + " and ".join(f"--where {key}={where[key]}" for key in where))
    frames = read_frames(experiment, expected, board.baseline)
    return Part(title, board, frames, visible, missing_sentences(board, experiment))


def check_conditions(board: Board, where: Params) -> None:
    """Refuse a condition that no cell of the matrix meets."""
    for key, value in where.items():
        values = {own for each in board.expected if (own := value_of(each, key)) is not None}
        if not values:
            known = {*AXES, *(name for each in board.expected for name in each.params)}
            raise UserError(f"--where names {key!r}, which no cell has; {nearest(key, known)}")
        if value not in values:
            raise UserError(f"--where {key} is {value!r}; {nearest(value, values)}")


def meets(cell: Expected, where: Params) -> bool:
    return all(value_of(cell, key) == value for key, value in where.items())


def is_of_method(key: str) -> bool:
    return key.partition(".")[0] == "method"


def value_of(cell: Expected, key: str) -> str | None:
    return str(getattr(cell, key)) if key in AXES else cell.params.get(key)


def board_titles(boards: Sequence[Board]) -> list[str]:
    """Name each matrix of an experiment by the settings in which they differ.

    Matrices that differ in something that is not a parameter are numbered by their age.
    """
    titles = [board_title(board, boards) for board in boards]
    numbered = []
    for place, title in enumerate(titles):
        numbered.append(f"{title} ({titles[place:].count(title)})" if titles.count(title) > 1 else title)
    return numbered


def board_title(board: Board, boards: Sequence[Board]) -> str:
    own, shared = shared_params(board), [shared_params(each) for each in boards]
    keys = sorted({key for params in shared for key in params})
    values = []
    for key in keys:
        differs = len({params.get(key) for params in shared}) > 1
        if differs and key in own and not is_of_method(key):
            values.append(f"{key}={own[key]}")
    return f"{board.experiment}: {', '.join(values)}" if values else board.experiment


def shared_params(board: Board) -> dict[str, str]:
    """Return the parameters that are the same in all cells."""
    return dict(set.intersection(*(set(each.params.items()) for each in board.expected)))


# Missing cells


def check_any_run(board: Board, experiment: Experiment) -> None:
    """Refuse a matrix without any run if its experiment holds runs of others, and say where these differ."""
    expected = {each.cell for each in board.expected}
    if not experiment.runs or any(run.tags["cell"] in expected for run in experiment.runs):
        return
    least = least_differences(experiment.runs, board.expected)
    differences = [f"{key} ({shown(theirs)}, not {shown(ours)})" for key, (theirs, ours) in least.items()]
    listed = ", ".join(differences[:KEYS_LISTED])
    more = f" and {len(least) - KEYS_LISTED} more" if len(least) > KEYS_LISTED else ""
    why = (
        f"in {listed}{more}"
        if differences
        else "in something that is not a parameter: a version of a method, task or model"
    )
    number = len(experiment.runs)
    nearest_differ = "the nearest differs" if number == 1 else "the nearest differ"
    raise UserError(
        f"no run of {experiment.name!r} is of this configuration; the experiment holds {plural(number, 'other')}, and "
        f"{nearest_differ} {why}"
    )


def least_differences(runs: Sequence[Run], expected: Sequence[Expected]) -> Differences:
    """Return where the run and the cell that are nearest to each other differ.

    There are many seeds and few settings, so these are compared first.
    """
    our_seeds = seeds_by_settings(each.params for each in expected)
    their_seeds = seeds_by_settings(run.params for run in runs)
    least: Differences = {}
    best: tuple[int, bool] | None = None
    for theirs, seeds in their_seeds.items():
        for ours, own_seeds in our_seeds.items():
            differences = params_difference(dict(theirs), dict(ours))
            distance = (len(differences), not seeds & own_seeds)
            if best is None or distance < best:
                best, least = distance, differences
                if not seeds & own_seeds:
                    least["seed"] = (", ".join(sorted(seeds)), ", ".join(sorted(own_seeds)))
    return least


def seeds_by_settings(every: Iterable[Params]) -> dict[Settings, set[str]]:
    """Return the seeds of each set of parameters."""
    seeds: dict[Settings, set[str]] = {}
    for params in every:
        settings = tuple((key, value) for key, value in params.items() if key != "seed")
        seeds.setdefault(settings, set()).add(params.get("seed", ""))
    return seeds


def params_difference(theirs: Params, ours: Params) -> Differences:
    pairs = {key: (theirs.get(key), ours.get(key)) for key in {**ours, **theirs}}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def missing_sentences(board: Board, experiment: Experiment) -> list[str]:
    """Return sentences on cells that are not done, and on information that is missing."""
    states = {cell: run.tags["status"] for cell, run in experiment.newest.items()}
    counts = Counter(states.get(each.cell, "without a run") for each in board.expected)
    sentences = []
    if counts["done"] < len(board.expected):
        listed = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
        sentences.append(f"Of {len(board.expected)} cells: {listed}.")
    if board.baseline not in {each.method for each in board.expected}:
        sentences.append(f"No cell is of the baseline {board.baseline}, so nothing is compared with it.")
    if board.config is None:
        sentences.append(
            "No summary in MLflow says which cells were expected, so what the newest run's configuration means counts; "
            "`entrobench sync` writes one."
        )
    return sentences + runs_left_out(board, experiment)


def runs_left_out(board: Board, experiment: Experiment) -> list[str]:
    """Return a sentence on the runs of cells that the matrix does not have, if there are any."""
    number = len(experiment.others(board))
    if not number:
        return []
    runs = "1 run of another cell" if number == 1 else f"{number} runs of other cells"
    verb = "is" if number == 1 else "are"
    return [f"{runs} with the same settings {verb} left out."]
