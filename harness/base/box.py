r"""The one way to find the last \boxed{} of a text."""

from __future__ import annotations

import re

BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
BOX_OR_BRACE = re.compile(rf"{BOX.pattern}\s{{0,9}}(\{{?)|\\.|[{{}}]", re.DOTALL)
LITERAL_BOX_OR_BRACE = re.compile(r"\\boxed(\{)|[{}]")
BARE = re.compile(r"[^\s$]*")


def last_box(text: str, *, literal: bool = False) -> str | None:
    r"""Returns what the last box holds; None where there is no box, or where the last one is cut off.

    By default the text is read as LaTeX: `\fbox` is a box, too; of boxes within a box, the outermost counts; `\}`
    closes nothing; and a box without braces, as in `\boxed 5`, holds all up to the next space.

    With `literal`, only the string `\boxed{` opens a box, and the last one counts wherever it stands. The gold answers
    of the data sets are read in this way.
    """
    first = BOX.search(text)
    opened: list[int | None] = []  # for each open brace: where the content of its box begins; None if it is no box's
    last, braced = 0, True
    start, end = -1, -1
    tokens = LITERAL_BOX_OR_BRACE if literal else BOX_OR_BRACE
    for match in tokens.finditer(text, first.start() if first else len(text)):
        token = match.group()
        if token == "{":
            opened.append(None)
        elif token == "}":
            begun = opened.pop() if opened else None
            if begun is not None and (begun == last or not literal):
                start, end = begun, match.start()
        elif match.group(1) is not None:
            last, braced = match.end(), bool(match.group(1))
            if braced:
                opened.append(last)
    if end < last and not braced:
        bare = BARE.search(text, last)
        assert bare is not None  # it matches anything
        start, end = bare.span()
    return text[start:end] if end >= last else None
