"""Tables for people: on a terminal no row is wider than the terminal, in a pipe or a file every column is there.

What does not fit is left out, the least important columns first, and named below the table. Where hardly a column
fits, each row becomes a card: its name, and a line for each of its values.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

FOLDED = 24  # characters that a column of long texts keeps on one line, at least
FULL = 100_000  # characters of a line where no terminal ends it
FEWEST = 3  # columns of a table; with fewer of them, cards say more
# All but the tab and the end of a line: the others move the cursor, colour, end a line where none is seen, turn the
# direction of what follows, hide in a text (a space without width, tags), or cannot be encoded (halves of pairs).
CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Returns the text with its control characters written out: what a model or a user wrote must not steer the
    terminal."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class SafeConsole(Console):
    """A console on which no control character of a text reaches the terminal; its own colours and movements do."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


@dataclass(frozen=True)
class Column:
    name: str
    right: bool = False  # numbers
    folds: bool = False  # a long text, which may go on below in its own column


def width_of(console: Console) -> int | None:
    """Returns the columns of the terminal; None where the console is none and everything is to be there."""
    return console.width if console.is_terminal else None


def fitting(
    lines: Sequence[Sequence[str]],
    width: int | None,
    goes: Sequence[Collection[str]] = (),
    *,
    between: int,
    around: int,
    folding: Collection[str] = (),
) -> list[int] | None:
    """Returns the columns that fit, by number; None where fewer than FEWEST of several do, and cards are better.

    The first line is the header, and the first column always stays. What goes first stands first in `goes`, together
    with what means nothing without it; of the columns that are not named there, the last goes first.
    """
    every = list(range(len(lines[0])))
    if width is None:
        return every
    sizes = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for number, name in enumerate(lines[0]):
        if name in folding:
            sizes[number] = min(sizes[number], max(FOLDED, cell_len(name)))
    named = {name for group in goes for name in group}
    order = [[i for i in every[1:] if lines[0][i] in group] for group in goes]
    order += [[i] for i in reversed(every[1:]) if lines[0][i] not in named]
    kept = every
    while sum(sizes[i] for i in kept) + between * (len(kept) - 1) + around > width:
        if not order:
            return None
        gone = order.pop(0)
        kept = [i for i in kept if i not in gone]
    return kept if len(kept) >= min(FEWEST, len(every)) else None


def cards(lines: Sequence[Sequence[str]]) -> Group:
    """Returns each row as its first value, and below it the others with their names; what is empty is left out."""
    header, *rows = lines
    parts: list[RenderableType] = []
    for row in rows:
        values = Table(box=None, show_header=False, pad_edge=False)
        values.add_column(no_wrap=True)
        values.add_column(overflow="fold")
        for name, value in list(zip(header, row, strict=True))[1:]:
            if value:
                values.add_row(Text(name), Text(value))
        parts += [Text(row[0], overflow="fold"), Padding(values, (0, 0, 0, 2), expand=False)]
    return Group(*parts)


def further(header: Sequence[str], kept: Collection[int], where: str) -> str:
    """Returns a sentence that names the columns which did not fit; an empty text where all did."""
    gone = [name for i, name in enumerate(header) if i not in kept]
    return f"further columns ({where}): {'; '.join(gone)}" if gone else ""


def folded(text: str, width: int | None) -> str:
    """Returns the text in lines that end between words; as it is where there is no terminal to wrap it elsewhere."""
    return text if width is None else textwrap.fill(text, width)


def show(
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
    """Prints a table, or what of it fits."""
    lines = [[visible(text) for text in line] for line in [[column.name for column in columns], *rows]]
    width, folding = width_of(console), {column.name for column in columns if column.folds}
    kept = fitting(lines, width, goes, between=2, around=2 * pad_edge, folding=folding)
    if kept is None:
        if title is not None:
            console.print(Text(title))
        console.print(cards(lines), soft_wrap=False)
        return
    if width is None:
        text = aligned(lines if names else lines[1:], columns, " " * pad_edge)
        console.out(f"{title}\n{text}" if title is not None else text, end="", highlight=False)
        return
    table = Table(box=None, header_style="dim", pad_edge=pad_edge, show_header=names, title=title, title_justify="left")
    for column in (columns[i] for i in kept):
        table.add_column(
            column.name, justify="right" if column.right else "left", no_wrap=not column.folds, overflow="fold"
        )
    for line in lines[1:]:
        table.add_row(*(Text(line[i]) for i in kept))
    console.print(table, crop=False)
    if said := further(lines[0], kept, where):
        console.print(folded(said, width), style="dim")


def aligned(lines: Sequence[Sequence[str]], columns: Sequence[Column], edge: str) -> str:
    """Returns the table where no terminal limits it, a row a line: there may be thousands of them."""
    sizes = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    told = []
    for line in lines:
        padded = [
            " " * (size - cell_len(text)) + text if column.right else text + " " * (size - cell_len(text))
            for text, size, column in zip(line, sizes, columns, strict=True)
        ]
        told.append(f"{edge}{'  '.join(padded)}".rstrip() + "\n")
    return "".join(told)


def fitting_boxed(
    lines: Sequence[Sequence[str]], width: int | None, goes: Sequence[Collection[str]]
) -> list[int] | None:
    """Return the columns of a boxed table that fit, by number; None where cards are better."""
    return fitting(lines, width, goes, between=3, around=1)


def boxed(
    title: str, cells: Sequence[Sequence[str]], width: int | None, goes: Sequence[Collection[str]], where: str
) -> str:
    """Returns a table of numbers under its title as text, or what of it fits into a terminal so wide."""
    lines = [[visible(text) for text in line] for line in cells]
    kept = fitting_boxed(lines, width, goes)
    if kept is None:
        return f"{title}\n\n{printed(cards(lines), width or FULL)}"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for i in kept:
        table.add_column(Text(lines[0][i]), justify="right" if i else "left", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*(Text(line[i]) for i in kept))
    said = further(lines[0], kept, where)
    return printed(table, FULL) + (f"\n{folded(said, width)}\n" if said else "")


def printed(renderable: RenderableType, width: int) -> str:
    """Returns what a terminal so wide shows, without colours and the blanks at the ends of lines."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().rstrip().splitlines())
