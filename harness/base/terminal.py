"""Output for people: tables no wider than the terminal, texts without control characters, libraries kept quiet.

Columns that do not fit are dropped, the least important first, and named below the table. A pipe or a file gets all.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from harness.base.errors import UserError

FOLDED = 24  # characters of a line in a column of long texts, at least
FULL = 100_000  # characters of a line without a terminal
# All control characters except the tab and the newline: they move the cursor, set colors, end a line invisibly, reverse
# the direction of the text that follows, are invisible (zero-width spaces, tags), or cannot be encoded (surrogates).
CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f\ud800-\udfff]"
)


@contextmanager
def without_bars() -> Iterator[None]:
    """Let transformers show no progress bars, if it showed any before."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def without_message(logger: logging.Logger, text: str) -> Iterator[None]:
    """Silence the messages of a library's logger that contain a text."""

    def wanted(record: logging.LogRecord) -> bool:
        return text not in record.getMessage()

    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


def visible(text: str) -> str:
    """Return a text with its control characters escaped: text by a model or a user must not control the terminal."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def escaped(lines: Iterable[Sequence[str]]) -> list[list[str]]:
    return [list(map(visible, line)) for line in lines]


class SafeConsole(Console):
    """A console that escapes the control characters of texts, but not those of its own styles and cursor movements."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Leave the error to the command, which ends with exit code 0; rich would end it with 1."""
        raise BrokenPipeError


# Without markup, since reasons and specs may hold brackets. In a file or a pipe each row of a table is one line. A
# notebook gets the plain lines of a pipe: its kernel asks for colors, and its outputs are kept.
console = SafeConsole(
    highlight=False,
    soft_wrap=True,
    markup=False,
    width=None if sys.stdout.isatty() else 160,
    force_jupyter=False,
    force_terminal=None if sys.stdout.isatty() else False,
)


@dataclass(frozen=True)
class Column:
    """The heading and the layout of a column."""

    name: str
    right: bool = False  # right-justified, for numbers
    folds: bool = False  # a long text, which may take several lines


def confirm(question: str, without_terminal: str) -> bool:
    """Ask on the terminal, where only y or yes agrees; without a terminal refuse with the given sentence."""
    if not sys.stdin.isatty():
        raise UserError(without_terminal)
    return ask(f"{question} [y/N] ").lower() in ("y", "yes")


def ask(question: str) -> str:
    """Return the answer to a question on the terminal; refuse Ctrl-D in its place."""
    try:
        return input(question).strip()
    except EOFError:
        print()
        raise UserError("the question was not answered, and nothing was done") from None


def width_of(console: Console) -> int | None:
    """Return the width of the terminal; None if the output is not a terminal and is never cut."""
    return console.width if console.is_terminal else None


def fitting(
    lines: Sequence[Sequence[str]],
    width: int | None,
    goes: Sequence[Collection[str]] = (),
    *,
    between: int,
    around: int,
    folding: Collection[str] = (),
) -> list[int]:
    """Return the numbers of the columns that fit.

    The first line is the header, and the first column always stays. `goes` has the order in which columns are dropped:
    each group is dropped together, because its columns mean nothing without each other. Columns that are not named
    there are dropped after these, from the last.
    """
    header = lines[0]
    every = list(range(len(header)))
    if width is None:
        return every
    sizes = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]  # in cells: some signs fill two
    for number, name in enumerate(header):
        if name in folding:
            sizes[number] = min(sizes[number], max(FOLDED, cell_len(name)))
    order: list[list[int]] = []  # the columns that are dropped together, the least important first
    for group in goes:
        order.append([i for i in every[1:] if header[i] in group])
    named = set().union(*order)
    order += [[i] for i in reversed(every[1:]) if i not in named]
    kept = every
    while order and sum(map(sizes.__getitem__, kept)) + between * (len(kept) - 1) + around > width:
        dropped = order.pop(0)
        kept = [i for i in kept if i not in dropped]
    return kept


def further(header: Sequence[str], kept: Collection[int], where: str) -> str:
    """Return a sentence that names the columns that did not fit; an empty text if all did."""
    dropped = [name for i, name in enumerate(header) if i not in kept]
    return f"further columns ({where}): {'; '.join(dropped)}" if dropped else ""


def folded(text: str, width: int | None) -> str:
    """Return a text wrapped at word boundaries; unchanged if `width` is None."""
    return text if width is None else textwrap.fill(text, width)


def show_table(
    console: Console,
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    goes: Sequence[Collection[str]] = (),
    *,
    title: str | None = None,
    names: bool = True,
    pad_edge: bool = True,
    where: str = "in a wider terminal or a pipe",
) -> None:
    """Print a table, or the columns of it that fit."""
    lines, width = escaped([[column.name for column in columns], *rows]), width_of(console)
    folding = {column.name for column in columns if column.folds}
    # Without a box, rich pads each cell by one space on either side; `pad_edge` also pads the ends of the line.
    kept = fitting(lines, width, goes, between=2, around=2 * pad_edge, folding=folding)
    table = Table(box=None, header_style="dim", pad_edge=pad_edge, show_header=names, title_justify="left")
    table.title = None if title is None else Text(title)
    for i in kept:
        column = columns[i]
        justify: JustifyMethod = "right" if column.right else "left"
        table.add_column(column.name, justify=justify, no_wrap=not column.folds, overflow="fold")
    for line in lines[1:]:
        table.add_row(*[Text(line[i]) for i in kept])  # without markup
    if width is None:
        console.out(printed(table), end="", highlight=False)  # a console has a width in a pipe, too, and folds lines
        return
    console.print(table, crop=False)
    if note := further(lines[0], kept, where):
        console.print(folded(note, width), style="dim")


def boxed(title: str, cells: Sequence[Sequence[str]], width: int | None, goes: Sequence[Collection[str]] = ()) -> str:
    """Return a table of numbers under its title as text, with the columns that fit into this width."""
    lines = escaped(cells)
    # Each cell has a space on either side, and the box has one between two cells; `printed` cuts the last of a line.
    kept = fitting(lines, width, goes, between=3, around=1)
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for i in kept:
        table.add_column(Text(lines[0][i]), justify="right" if i else "left", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*[Text(line[i]) for i in kept])
    # At full width, since rich counts that last space, too, and would shorten texts that just fit.
    text, note = printed(table), further(lines[0], kept, "--format csv")
    return f"{text}\n{folded(note, width)}\n" if note else text


def printed(table: Table) -> str:
    """Return the text of a table at full width, without colors and trailing spaces."""
    file = io.StringIO()
    Console(file=file, width=FULL, color_system=None, force_jupyter=False).print(table)
    lines = [line.rstrip() for line in file.getvalue().rstrip().splitlines()]
    return "\n".join([*lines, ""])
