"""Cleaning of published rows: pure functions on text that count each change."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from harness.verify.box import last_box

WRAPPER = (  # the prompt that DAPO-Math-17k puts around every problem
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n",
    '\n\nRemember to put your answer on its own line after "Answer:".',
)
# LaTeX commands whose backslash and first letter were converted into one control character before publication. Commands
# that begin like a newline or a tab are listed only if unambiguous: a line may begin with "u", so \nu is not listed.
ESCAPED = {
    "\a": ("alpha", "angle", "approx"),
    "\b": ("beta", "begin", "bar", "binom", "boxed", "bullet", "bmod"),
    "\t": ("text", "textbf", "textit", "tfrac", "times", "theta", "triangle"),
    "\n": ("nabla",),
    "\v": ("vec", "varphi", "varepsilon", "vdots"),
    "\f": ("frac", "forall", "floor"),
    "\r": ("right", "rightarrow", "rho", "rfloor", "rceil"),
}
COMMANDS: dict[str, str] = {}  # the whole command by its damaged text
for control, names in ESCAPED.items():
    COMMANDS |= {control + name[1:]: name for name in names}
LONGEST_FIRST = sorted(COMMANDS, key=len, reverse=True)  # of alternatives, a pattern takes the first that fits
COMMAND = re.compile(f"({'|'.join(map(re.escape, LONGEST_FIRST))})(?![A-Za-z])")
# A form feed may also be the ligature "fi" of a PDF font: here in "find", "first", "define", "satisfies", "fitting".
LIGATURE = re.compile(r"(?<!fi)\f(?=(?:nd|rst|ne|es|tting)\b)")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
BARE_NUMBER = re.compile(r"\$?\s*(?:-?[0-9]+|-?\\[dt]?frac\{-?[0-9]+\}\{-?[0-9]+\})\s*\$?")
INTEGER = re.compile(r"([+-]?)([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.0+)?")

COPY, SPACED_COPY = "copy of another row", "copy of another row but for white space"
CONFLICT, NO_PROBLEM = "problem with two answers", "no problem, or only a number"
NO_ANSWER = "answer missing or of no known form"
UNWRAPPED, UNLIGATED, CONTROLLED = "prompt around the problem removed", "fi restored", "control characters removed"


def fold(text: str) -> str:
    """Return the text with each run of white space as one space; rows with equal results are the same problem."""
    return " ".join(text.split())


def problem_digest(problem: str) -> str:
    return hashlib.sha256(fold(problem).encode()).hexdigest()


def unwrap(text: str) -> str:
    """Remove DAPO's prompt as a whole string: str.strip would remove letters of the problem too."""
    return text.removeprefix(WRAPPER[0]).removesuffix(WRAPPER[1])


def repair(text: str) -> tuple[str, list[str]]:
    """Undo the damage of earlier conversions; return the text and the names of the repairs."""
    damaged = set(COMMAND.findall(text))
    repairs = sorted(rf"\{COMMANDS[command]} restored" for command in damaged)
    text = COMMAND.sub(lambda match: "\\" + COMMANDS[match[1]], text)
    for pattern, replacement, name in ((LIGATURE, "fi", UNLIGATED), (CONTROL, "", CONTROLLED)):
        text, number = pattern.subn(replacement, text)
        if number:
            repairs.append(name)
    return text.strip(), repairs


def integer_answer(answer: str) -> str | None:
    r"""Return an integer answer in canonical form; None for any other answer.

    It reads `025`, `25`, `25.0`, `1,234`, `336^\circ`, `\boxed{204}` and `... #### 18`.
    """
    text = answer.rpartition("####")[2]
    boxed = last_box(text, literal=True)
    if boxed is not None:
        text = boxed
    match = INTEGER.fullmatch(re.sub(r"\^\{?\\circ\}?|\\degree|°|\$|\s", "", text))
    if match is None:
        return None
    # The result stays text: Python refuses integers of thousands of digits, and floats round those of more than 15.
    digits = match[2].replace(",", "").lstrip("0") or "0"
    if match[1] == "-" and digits != "0":
        return "-" + digits
    return digits


def verbatim_answer(answer: str) -> str | None:
    return answer.strip() or None


@dataclass
class Counts:
    """The numbers of rows: read, dropped by reason, and repaired by kind of repair."""

    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Variant:
    """One spelling of a problem."""

    bare: str  # before repairs
    text: str
    answer: str
    rows: int


def clean(
    raw: Mapping[tuple[str, str], int],
    answer: Callable[[str], str | None],
    counts: Counts,
    conflicts: Collection[str] = (),
) -> dict[str, str]:
    """Return the distinct problems of `raw` with their answers, in the order of first appearance.

    `raw` counts rows by (problem, answer). `conflicts` holds the first 12 digits of digests of problems that are known
    to have two answers, for copies that have lost one of them.
    """
    variants_by_problem: dict[str, list[Variant]] = {}
    for (published, published_answer), number in raw.items():
        counts.rows += number
        bare = unwrap(published)
        text, repairs = repair(bare)
        if bare != published:
            repairs = [UNWRAPPED, *repairs]
        for name in repairs:
            counts.repaired[name] += number
        value = answer(published_answer)
        if value is None:
            counts.dropped[NO_ANSWER] += number
        elif not text or BARE_NUMBER.fullmatch(text):
            counts.dropped[NO_PROBLEM] += number
        else:
            variants_by_problem.setdefault(fold(text), []).append(Variant(bare, text, value, number))
    kept = {}
    for folded, variants in variants_by_problem.items():
        number, values, spellings = 0, set(), set()
        for variant in variants:
            number += variant.rows
            values.add(variant.answer)
            spellings.add(variant.bare)
        if len(values) > 1 or problem_digest(folded)[:12] in conflicts:
            counts.dropped[CONFLICT] += number
            continue
        counts.dropped[COPY] += number - len(spellings)
        counts.dropped[SPACED_COPY] += len(spellings) - 1
        kept[variants[0].text] = variants[0].answer
    return kept
