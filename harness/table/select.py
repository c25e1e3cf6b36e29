"""The part of an experiment that a reader asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.base.errors import UserError, nearest
from harness.base.units import plural
from harness.cells.spec import TRAINER
from harness.config import YAML, setting_label
from harness.table import compare, leaderboard
from harness.table.board import AXES, Board, Expected, Experiment, missing_sentences
from harness.table.compare import Comparison
from harness.table.frames import BASE_MODEL, Frames, read_frames
from harness.table.leaderboard import LeaderboardRow

Params = Mapping[str, str]


@dataclass(frozen=True)
class Part:
    """The selected part of one matrix; matrices are never pooled."""

    title: str
    board: Board
    frames: Frames  # of all methods, since verdicts and ranks are
    visible: set[str]  # the selected methods
    lacking: list[str]  # sentences

    @property
    def shown(self) -> Frames:
        cells = self.frames.cells
        return replace(self.frames, cells=cells[cells["method"].isin(self.visible)])

    def rows(self) -> list[LeaderboardRow]:
        rows = leaderboard.leaderboard_rows(self.frames, self.board.baseline, self.board.ks)
        return [row for row in rows if row.method in {*self.visible, BASE_MODEL}]

    def comparisons(self) -> list[Comparison]:
        """Return the comparisons of the selected methods; adjustment and ranks are over all methods that were read."""
        found = compare.comparisons(self.frames, self.board.baseline, self.board.ks)
        shown = {*self.visible, self.board.baseline, BASE_MODEL}
        return [comparison for comparison in found if comparison.method in shown]


def conditions(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of --where, by key."""
    wanted: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not (key and equals):
            raise UserError(f"--where is {argument!r}; write key=value, for example task=countdown")
        if wanted.setdefault(key, value) != value:
            raise UserError(f"--where asks for {key}={wanted[key]} and {key}={value}, and no cell has both")
    return wanted


def check_begun(experiment: Experiment, board: Board) -> None:
    """Refuse a matrix without any run in an experiment that holds runs of others."""
    expected = {cell.cell for cell in board.expected}
    if experiment.runs and not expected & experiment.newest.keys():
        others = plural(len(experiment.runs), "other")
        raise UserError(
            f"no run of {experiment.name!r} is of this configuration, whose overrides must be those of `run`; the "
            f"experiment holds {others}"
        )


def parts_of_boards(
    experiment: Experiment, boards: Sequence[Board], where: Params, baseline: str | None = None
) -> list[Part]:
    """Return the table of each of these matrices; `where`: the values of --where, `baseline`: None as configured.

    If there are several, matrices without the selected values are left out, unless all are without them.
    """
    parts, refusals = [], []
    for board, title in zip(boards, board_titles(boards), strict=True):
        try:
            parts.append(part_of_board(experiment, board, title, where, baseline))
        except UserError as error:
            if not where and baseline is None:
                raise
            refusals.append(error)
    if not parts:
        raise refusals[0]
    return parts


def part_of_board(experiment: Experiment, board: Board, title: str, where: Params, baseline: str | None = None) -> Part:
    if baseline is not None:
        board = board.against(baseline)
    check_conditions(board, where)
    on_methods = {key: value for key, value in where.items() if is_of_method(key)}
    on_others = {key: value for key, value in where.items() if not is_of_method(key)}
    visible = {cell.method for cell in board.expected if meets(cell, on_methods)}
    # Conditions on the method choose rows. All methods are read: the correction of a verdict is for their number.
    expected = [cell for cell in board.expected if meets(cell, on_others)]
    if not any(cell.method in visible for cell in expected):
        listed = " and ".join(f"--where {key}={value}" for key, value in where.items())
        raise UserError(f"no cell meets all of {listed}")
    frames = read_frames(experiment, expected, board.baseline)
    return Part(title, board, frames, visible, missing_sentences(board, experiment))


def check_conditions(board: Board, where: Params) -> None:
    """Refuse a condition that no cell of the matrix meets."""
    for key, value in where.items():
        values = {YAML.get(own, own) for cell in board.expected if (own := value_of(cell, key)) is not None}
        if not values:
            known = {*AXES}.union(*(cell.params for cell in board.expected))
            raise UserError(f"--where names {key!r}, which no cell has; {nearest(key, known)}")
        if not any(is_same(value, each) for each in values):
            raise UserError(f"--where {key} is {value!r}; {nearest(value, values)}")


def meets(cell: Expected, where: Params) -> bool:
    return all((own := value_of(cell, key)) is not None and is_same(own, value) for key, value in where.items())


def is_same(value: str, other: str) -> bool:
    """Return whether two values are equal: 7e-4 is 0.0007, and null is what parameters have as None."""
    if YAML.get(value, value) == YAML.get(other, other):
        return True
    try:
        return float(value) == float(other)
    except ValueError:
        return False


def is_of_method(key: str) -> bool:
    return key.partition(".")[0] == "method"


def value_of(cell: Expected, key: str) -> str | None:
    if key in AXES:
        # Not from the parameters, where a method has its plain name, without the options that a table adds.
        return str(getattr(cell, key))
    return cell.params.get(key)


def board_titles(boards: Sequence[Board]) -> list[str]:
    """Name each matrix of an experiment by the settings in which they differ.

    Matrices that differ in something that is not a parameter are numbered by their age.
    """
    shared = list(map(shared_params, boards))
    titles = [board_title(board, shared) for board in boards]
    numbered = []
    for place, title in enumerate(titles):
        age = titles[place:].count(title)  # the last is the oldest, and number 1
        numbered.append(f"{title} ({age})" if titles.count(title) > 1 else title)
    return numbered


def board_title(board: Board, shared: Sequence[Params]) -> str:
    """Name a matrix; `shared`: the parameters of each matrix that are the same in all of its cells."""
    own_params = shared_params(board)
    own_values = {}
    for key, value in sorted(own_params.items()):
        differs = any(params.get(key) != value for params in shared)
        if differs and not is_of_method(key):
            own_values[key] = value
    return f"{board.experiment}: {setting_label(own_values)}" if own_values else board.experiment


def shared_params(board: Board) -> dict[str, str]:
    """Return the parameters that are the same in all cells that were trained here."""
    of_cells = [set(cell.params.items()) for cell in board.expected if TRAINER not in cell.params]
    return dict(set.intersection(*of_cells))
