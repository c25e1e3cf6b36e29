"""Published rows made into problems that can be trusted, by pure functions on text that count all they change."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from harness.base.box import last_box

WRAPPER = (  # what DAPO-Math-17k puts around every problem
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n",
    '\n\nRemember to put your answer on its own line after "Answer:".',
)
# Commands whose backslash and first letter were read as one escape. Of those that begin like a newline or a tab, only
# the ones that cannot be text: a line may well begin with "u", and "an" may well follow a tab.
ESCAPED = {
    "\a": ("alpha", "angle", "approx"),
    "\b": ("beta", "begin", "bar", "binom", "boxed", "bullet", "bmod"),
    "\t": ("text", "textbf", "textit", "tfrac", "times", "theta", "triangle"),
    "\n": ("nabla",),
    "\v": ("vec", "varphi", "varepsilon", "vdots"),
    "\f": ("frac", "forall", "floor"),
    "\r": ("right", "rightarrow", "rho", "rfloor", "rceil"),
}
COMMANDS = {control + name[1:]: name for control, names in ESCAPED.items() for name in names}
COMMAND = re.compile(f"({'|'.join(map(re.escape, sorted(COMMANDS, key=len, reverse=True)))})(?![A-Za-z])")
# A form feed is also the ligature fi of some PDF fonts: here of "find", "first", "define", "satisfies", "fitting".
LIGATURE = re.compile(r"(?<!fi)\f(?=(?:nd|rst|ne|es|tting)\b)")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
BARE_NUMBER = re.compile(r"\$?\s*(?:-?[0-9]+|-?\\[dt]?frac\{-?[0-9]+\}\{-?[0-9]+\})\s*\$?")
INTEGER = re.compile(r"([+-]?)([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.0+)?")

COPY, SPACED_COPY = "copy of another row", "copy of another row but for white space"
CONFLICT, NO_PROBLEM = "problem with two answers", "no problem, or only a number"
NO_ANSWER = "answer missing or of no known form"
UNWRAPPED, UNLIGATED, CONTROLLED = "prompt around the problem removed", "fi restored", "control characters removed"


def fold(text: str) -> str:
    """Returns the text with all white space counted alike; rows that agree in this are the same problem."""
    return " ".join(text.split())


def digest(problem: str) -> str:
    return hashlib.sha256(fold(problem).encode()).hexdigest()


def unwrap(text: str) -> str:
    """Removes DAPO's prompt, and only as a whole: stripping its characters would eat the problem's own."""
    return text.removeprefix(WRAPPER[0]).removesuffix(WRAPPER[1])


def repair(text: str) -> tuple[str, list[str]]:
    """Returns the text without the damage of earlier conversions, and the names of what was mended."""
    mended = sorted({rf"\{COMMANDS[command]} restored" for command in COMMAND.findall(text)})
    text = COMMAND.sub(lambda match: "\\" + COMMANDS[match[1]], text)
    for pattern, replacement, name in ((LIGATURE, "fi", UNLIGATED), (CONTROL, "", CONTROLLED)):
        text, number = pattern.subn(replacement, text)
        mended += [name] * (number > 0)
    return text.strip(), mended


def integer(answer: str) -> str | None:
    r"""Reads an integer in one form, in which all compare; None for any other answer.

    It takes `025`, `25`, `25.0`, `1,234`, `336^\circ`, `\boxed{204}` and `... #### 18`.
    """
    text = answer.rpartition("####")[2]
    boxed = last_box(text, literal=True)
    text = re.sub(r"\^\{?\\circ\}?|\\degree|°|\$|\s", "", text if boxed is None else boxed)
    match = INTEGER.fullmatch(text)
    if match is None:
        return None
    # As text: Python refuses to read integers of thousands of digits, and floats would round those of more than 15.
    digits = match[2].replace(",", "").lstrip("0") or "0"
    return "-" + digits if match[1] == "-" and digits != "0" else digits


def verbatim(answer: str) -> str | None:
    return answer.strip() or None


@dataclass
class Counts:
    """The reasons why rows were not kept, with their numbers, and what was mended."""

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)


def clean(
    raw: Mapping[tuple[str, str], int],
    answer: Callable[[str], str | None],
    counts: Counts,
    conflicts: Collection[str] = (),
) -> dict[str, str]:
    """Returns the distinct problems of `raw`, which counts rows by (problem, answer), in the order of first appearance.

    `conflicts` holds how the digests of problems known to have two answers begin, for copies that have lost one of
    them.
    """
    groups: dict[str, list[tuple[str, str, str, int]]] = {}  # of one problem: bare text, text, answer, number of rows
    for (given, given_answer), number in raw.items():
        counts.rows += number
        bare = unwrap(given)
        text, mended = repair(bare)
        value = answer(given_answer)
        for name in [UNWRAPPED] * (bare != given) + mended:
            counts.repaired[name] += number
        if value is None or not text or BARE_NUMBER.fullmatch(text):
            counts.dropped[NO_ANSWER if value is None else NO_PROBLEM] += number
        else:
            groups.setdefault(fold(text), []).append((bare, text, value, number))
    kept = {}
    for folded, group in groups.items():
        number = sum(member[3] for member in group)
        if len({value for _, _, value, _ in group}) > 1 or digest(folded)[:12] in conflicts:
            counts.dropped[CONFLICT] += number
            continue
        forms = len({bare for bare, _, _, _ in group})
        counts.dropped[COPY] += number - forms
        counts.dropped[SPACED_COPY] += forms - 1
        _, text, value, _ = group[0]
        kept[text] = value
    return kept
