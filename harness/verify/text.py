"""Reads the answer in the last box of a response in one way of writing, and judges it where that is plain to see."""
# ruff: noqa: RUF001  letters that look like others are what it reads

from __future__ import annotations

import re

from harness.base.box import BOX, find_box, last_box
from harness.base.task import Answer, Verdict

DEEPEST = 10  # nested brackets; the parser of LaTeX takes seconds for twice as many


def extract(response: str) -> str | None:
    """Returns the answer in the last box of a response; None where the box is missing, empty or cut off."""
    return (last_box(response) or "").strip() or None


def boxed_answer(response: str) -> Answer | None:
    """Return the answer in the last box of a response, which ends with the last complete box.

    Answers are told apart by their spelling: 1/2 and 0.5 are two, since to know that they are equal takes the verifier.
    """
    box = find_box(response)
    if box is None:
        return None
    text = extract(response)
    return Answer(None if text is None else normal(text), box.end)


def normal(text: str) -> str:
    """Return an answer in one way of writing."""
    number = integer(text)
    return spelling(tidy(text)) if number is None else str(number)


# One way to write it

PLAIN = str.maketrans(
    {
        **dict.fromkeys("−–﹣－", "-"),
        **dict.fromkeys("\t\n\r\f\u00a0\u2002\u2003\u2009\u200a\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u2060\ufeff", ""),
        **dict.fromkeys("·⋅∙", r"\cdot "),
        **{"×": r"\times ", "÷": r"\div ", "±": r"\pm ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne "},
        **{"π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset "},
        **{
            "°": r"^\circ ",
            "²": "^{2}",
            "³": "^{3}",
            "½": r"\frac{1}{2}",
            "¼": r"\frac{1}{4}",
            "¾": r"\frac{3}{4}",
            "％": r"\%",
        },
        **{"，": ",", "。": ".", "（": "(", "）": ")", "：": ":", "；": ";", "＝": "=", "＋": "+", "’": "'"},
    }
)
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"√ *(?:\(([^()]*)\)|([0-9]+|[a-zA-Z]))", r"\\sqrt{\1\2}"),
        (BOX.pattern, ""),  # around a part of the answer, or twice around all of it
        (r"(?<!\\)(?:\\!\s*|\$|\\[()\[\]])|\\(?:display|text)style(?![a-zA-Z])", ""),
        (r"(?<!\\)(?:\\[,;: ]|~)|\\q?quad(?![a-zA-Z])", " "),
        (r"\{,\}", ","),
        (r"\\(?:text|math)(?:rm|bf|it|sf|tt|normal)(?![a-zA-Z])|\\mbox(?![a-zA-Z])", r"\\text"),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\frac *([0-9]) *([0-9])", r"\\frac{\1}{\2}"),
        (r"\\sqrt *([0-9]+)", r"\\sqrt{\1}"),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
        (r"\\\\\[[0-9.]+ *[a-z]{2}\]", r"\\\\"),  # space after a row
        (r"_\{([0-9]+)\}", r"_\1"),
        (r"\\degree(?![a-zA-Z])", r"^\\circ"),
        (r"\^ *(?:\{ *\\circ *\}|\\circ)(?![a-zA-Z])", r"^\\circ"),
        (r" +", " "),
    )
]
ARITHMETIC = re.compile(r"[-+*/()0-9]*")  # is tidy, and spelled in one way: most answers need no more than this look
MIXED = re.compile(r"([-+]?[0-9]+) ([0-9]+)/([0-9]+)")
SCIENTIFIC = re.compile(r"[-+]?(?:[0-9]*\.[0-9]+e[-+]?|[0-9]+e)[0-9]+")  # 2e-5 may be 2e minus 5
BASED = re.compile(r"([0-9A-Z]+)_\{?([0-9]+)\}?")
SCALE = re.compile(rf"(?<=[0-9]) *(?:(\\text\{{) *)?({'|'.join(SCALES)})(?![a-zA-Z])")
REPEATING = re.compile(r"(?<![0-9])([0-9]{0,30})\.([0-9]{0,30})\\(?:overline|bar)\{([0-9]{1,30})\}")
WRAPPED = re.compile(r"(?:\\text)? *\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")


def tidy(text: str) -> str:
    """Returns the same answer without typography."""
    if ARITHMETIC.fullmatch(text):
        return text
    text = text.translate(PLAIN)
    for pattern, replacement in REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip().removeprefix("=").rstrip(".,;: ").strip()
    text = REPEATING.sub(fraction, SCALE.sub(power_of_ten, text))
    if SCIENTIFIC.fullmatch(text):
        return text.upper()
    mixed = MIXED.fullmatch(text)
    return rf"{mixed[1]}\frac{{{mixed[2]}}}{{{mixed[3]}}}" if mixed else text


def power_of_ten(match: re.Match[str]) -> str:
    return rf"\times 10^{{{SCALES[match[2]]}}}{match[1] or ''}"


def fraction(match: re.Match[str]) -> str:
    """Writes a repeating decimal as a fraction: 0.1\\overline{6} -> 15/90."""
    whole, fixed, period = match.groups()
    numerator = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{numerator}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"


def spelling(text: str) -> str:
    """Returns a form in which answers that are spelled alike agree; many that are equal in value do not."""
    if ARITHMETIC.fullmatch(text):
        return text
    text = re.sub(r"\\text *\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<![0-9]) | (?![0-9])", "", text)
    text = text if "\\" in text else text.lower()  # of commands, \Delta is not \delta
    choice = re.fullmatch(r"\(?([a-z])\)?", text)
    return choice[1] if choice else text


# Integers

LENGTHS = r"(?:[kcm]?m|in|ft|inch(?:es)?|foot|feet|yards?|miles?|(?:centi|kilo|milli)?met(?:er|re)s?|units?)"
UNITS = (
    rf"(?:(?:sq(?:uare|\.)?|cubic) )?{LENGTHS}(?: ?\^\{{?[23]\}}?)?|degrees?|dollars?|cents?|kg|grams?|lit(?:er|re)s?|"
    r"years?|months?|weeks?|days?|hours?|minutes?|seconds?|people|students?|points?|"
    r"ways|mph|[个人元米度天年种次条厘平方千]{1,4}"
)
INTEGER = re.compile(
    r"(?:\\?[$€£¥])? ?([-+]?) ?(?:\\?[$€£¥])? ?"
    r"([0-9]{1,3}(?:[, ][0-9]{3}){1,1300}|[0-9]{1,4000})(?:\.0*)?"  # int() takes up to 4,300 digits
    rf" ?(?:\^\\circ|(?:{UNITS})|\\text ?\{{ ?(?:{UNITS})\.? ?\}}(?:\^\{{?[23]\}}?)?)?"
)


def integer(text: str) -> int | None:
    """Reads an answer as an integer, whatever its zeros, separators, sign and unit; None for any other answer."""
    text = tidy(text)
    while wrapped := WRAPPED.fullmatch(text):
        text = wrapped[1].strip(" .")
    match = INTEGER.fullmatch(text)
    return int(match[1] + match[2].replace(",", "").replace(" ", "")) if match else None


# Judging


def quickly(gold: str, answer: str) -> Verdict | None:
    """Returns the verdict on tidy answers where that is plain to see, else None."""
    wanted, given = integer(gold), integer(answer)
    if wanted is not None and given is not None:
        return Verdict.RIGHT if wanted == given else Verdict.WRONG
    if spelling(gold) == spelling(answer):
        return Verdict.RIGHT
    if BASED.fullmatch(gold) and BASED.fullmatch(answer):
        return Verdict.WRONG
    return None if legible(answer) else Verdict.UNPARSED


def legible(answer: str) -> bool:
    """Tells whether the parser of LaTeX may see it: no controls, no digits but 0-9, no abyss of brackets."""
    depth = deepest = 0
    for letter in answer:
        depth += (letter in "([{") - (letter in ")]}")
        deepest = max(deepest, depth)
        if not letter.isprintable() or (letter.isnumeric() and not letter.isascii()):
            return False
    return bool(answer) and deepest <= DEEPEST
