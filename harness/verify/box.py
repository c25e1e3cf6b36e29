r"""The last \boxed{} of a text, found by the same rule for gold answers, verdicts and diversity."""

from __future__ import annotations

import re
from dataclasses import dataclass

BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
# The order matters: a box begins with a backslash too, and the brace of an escaped \} must not count.
BOX_OR_BRACE = re.compile(rf"{BOX.pattern}\s{{0,9}}(\{{?)|\\.|[{{}}]", re.DOTALL)
LITERAL_BOX_OR_BRACE = re.compile(r"\\boxed(\{)|[{}]")
BARE = re.compile(r"[^\s$]*")


@dataclass(frozen=True)
class Box:
    """The last complete box of a text."""

    content: str
    end: int  # the position after its closing brace
    cut_off: bool  # another box follows or encloses it, and is not closed


def last_box(text: str, *, literal: bool = False) -> str | None:
    """Return the content of the last box; None without a box, or if the last one is cut off."""
    box = find_box(text, literal=literal)
    return None if box is None or box.cut_off else box.content


def find_box(text: str, *, literal: bool = False) -> Box | None:
    r"""Return the last complete box of a text; None if there is none.

    By default the text is read as LaTeX: `\fbox` is also a box, the outermost of nested boxes counts, `\}` closes
    nothing, and a box without braces, as in `\boxed 5`, ends at the next space.

    With `literal`, only the string `\boxed{` opens a box, and the last one counts, nested or not. Gold answers of the
    data sets are read in this way.
    """
    first = BOX.search(text)
    opened: list[int | None] = []  # for each open brace, the start of its box's content; None without box
    last, braced = 0, True
    start, end = -1, -1
    tokens = LITERAL_BOX_OR_BRACE if literal else BOX_OR_BRACE
    for match in tokens.finditer(text, first.start() if first else len(text)):
        token = match.group()
        if token == "{":
            opened.append(None)
        elif token == "}":
            begun = opened.pop() if opened else None
            # An outer box closes after the boxes in it, and so takes their place. In the literal reading, only the box
            # that was opened last counts.
            if begun is not None and (begun == last or not literal):
                start, end = begun, match.start()
        elif match.group(1) is not None:  # a box; an escaped character has no group
            last, braced = match.end(), bool(match.group(1))
            if braced:
                opened.append(last)
    if end < last and not braced:  # the last box has no braces, and no box around it has closed
        bare = BARE.search(text, last)
        assert bare is not None  # it matches anything
        start, end = bare.span()
        return Box(text[start:end], end, cut_off=False)
    return None if end < 0 else Box(text[start:end], end + 1, cut_off=end < last)
