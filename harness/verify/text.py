"""Reads the answer in the last box of a response in one way of writing, and judges it where that is plain to see."""
# ruff: noqa: RUF001  letters that look like others are what it reads

from __future__ import annotations

import re

from harness.base.box import BOX, find_box, last_box
from harness.base.task import Answer, Verdict

DEEPEST = 10  # nested brackets; the parser of LaTeX takes seconds for twice as many


def extract(response: str) -> str | None:
    """Return the answer in the last box of a response; None where the box is missing, empty or cut off."""
    content = last_box(response) or ""
    answer = content.strip()
    backslashes = len(answer) - len(answer.rstrip("\\"))
    if backslashes % 2 and not content.endswith("\\"):
        answer += " "  # the last backslash of `7\\ ` is half of a command, which is a space
    return answer or None


# Units

NOT_UNITS = frozenset(  # words after which a number is another number, or no answer
    re.findall(
        "[a-z]+",
        """
        zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
        eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
        hundred thousand million billion trillion dozen hundreds thousands millions billions trillions dozens
        half halves third thirds fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths
        tenth tenths hundredth hundredths thousandth thousandths millionth millionths billionth billionths
        percent pct squared cubed factorial pi infinity infinite mod modulo base double triple twice
        and or nor but plus minus over than if unless when otherwise except else
        is are was were isn aren not no never none wrong false incorrect
        """,
    )
)
LETTERS = frozenset("mgshlLJNWVK")  # that are units where they are upright; all other letters are mathematics
EXPONENT = r"(?: ?\^ ?(?:[1-3]|\{ ?-?[1-3] ?\}))"
LENGTHS = r"(?:[kcdm]m|in|ft|inch(?:es)?|foot|feet|yards?|miles?|(?:centi|kilo|milli)?met(?:er|re)s?|units?)"
HAN = (
    r"(?:平方|立方)?(?:厘米|分米|毫米|千米|公里|米)|千克|公斤|克|升|度|元|个|人|天|年|月|日|周|种|次|条|岁|只|页|张|"
    r"小时|分钟|秒|厘|平方"
)
BARE = (  # without `\\text`, letters are factors, but for these
    rf"(?:(?:sq(?:uare|\.)?|cubic) )?{LENGTHS}{EXPONENT}?|(?:square )?m{EXPONENT}|degrees?|deg|radians?|"
    r"dollars?|cents?|pounds?|euros?|rupees?|coins?|kg|grams?|lbs?|gal(?:lons?)?|lit(?:er|re)s?|acres?|hectares?|"
    r"years?|months?|weeks?|days?|hours?|minutes?|seconds?|hrs?|mins?|secs?|mph|kmph|km/h|"
    r"people|students?|men|women|soldiers?|monkeys?|apples?|tiles?|toys?|meals?|"
    rf"points?|marks?|digits?|edges?|ways|rounds|{HAN}"
)
LIST_WORD = r"(?:and|or)(?![a-zA-Z])"
END = rf"(?= ?(?:$|[,;:)\]}}&]|\\[}}\\]|\\right(?![a-zA-Z])|\\text ?\{{ ?,? ?{LIST_WORD} ?\}}|,? ?{LIST_WORD}))"
UPRIGHT = (
    rf"\\text ?\{{(?! ?,? ?{LIST_WORD} ?\}})((?:[^{{}}0-9\\^]|\^\\circ|\^[23]|\^\{{[23]\}}|(?<=m)[23])*)\}}{EXPONENT}?"
)
UPRIGHT_UNIT = re.compile(rf" ?{UPRIGHT}(?: ?(?:/|\\cdot)? ?{UPRIGHT})*{END}")
BARE_UNIT = re.compile(rf"(?<=[0-9)}}]) ?(?:{BARE}){END}|(?<=\\pi )(?:{BARE}){END}|(?<=\\circ) ?[CF]{END}")
METERS = re.compile(r"([-+]?[0-9][0-9,]*(?:\.[0-9]*)?|[-+]?\.[0-9]+) ?m")  # alone: in 3 + 2m it is a variable
LISTED = re.compile(rf"(?<=[0-9)}}\]])( ?\\text ?\{{[^{{}}0-9]*?[a-zA-Z.]) ?(?:,| {LIST_WORD}) ?\}}(?= ?[^ ,])")
UPRIGHT_NUMBER = re.compile(r"\\text ?\{ ?([-+]?[0-9][0-9.,/]*) ?([^{}0-9]+)\}")
WORDLESS_TEXT = re.compile(r"\\text ?\{[^{}0-9]*\}$")


def without_units(text: str) -> str:
    """Return a tidy answer without the units after its numbers."""
    if not HAS_LETTERS.search(text):
        return text
    if "\\text" in text:
        text = UPRIGHT_NUMBER.sub(r"\1\\text{\2}", text, count=1) if UPRIGHT_NUMBER.fullmatch(text) else text
        text = LISTED.sub(r"\1},", text)
        text = UPRIGHT_UNIT.sub(dropped_unit, text)
    text = BARE_UNIT.sub("", METERS.sub(r"\1", text) if METERS.fullmatch(text) else text)
    return text.strip().rstrip(".,;: ")


def dropped_unit(match: re.Match[str]) -> str:
    """Return nothing in place of a unit after a number, and other text as it is."""
    before = match.string[: match.start()].rstrip()
    follows_number = bool(re.search(r"[0-9a-zA-Z)}\]!%]$", before)) and not WORDLESS_TEXT.search(before)
    degrees = before.endswith(r"\circ")
    words = re.sub(r"\\text|\\cdot", " ", match[0])
    return "" if follows_number and is_unit(words, degrees) else match[0]


def is_unit(text: str, degrees: bool) -> bool:
    """Tell whether words after a number leave its value as it is."""
    if not text.isascii():
        return re.fullmatch(rf"[ {{}}]*(?:{HAN}|[a-zµμΩÅ])+[ {{}}]*", text) is not None
    words = re.findall("[a-zA-Z]+", text)
    if len(words) == 1 and len(words[0]) == 1:
        return words[0] in LETTERS or (degrees and words[0] in "CF")
    return NOT_UNITS.isdisjoint(word.lower() for word in words)


def boxed_answer(response: str) -> Answer | None:
    """Return the answer in the last box of a response, which ends with the last complete box.

    Answers are told apart by their spelling: 1/2 and 0.5 are two, since to know that they are equal takes the verifier.
    """
    box = find_box(response)
    if box is None:
        return None
    text = extract(response)
    return Answer(None if text is None else normal_answer(text), box.end)


def normal_answer(text: str) -> str:
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
SCALES = {
    "hundred": "10^{2}",
    "thousand": "10^{3}",
    "million": "10^{6}",
    "billion": "10^{9}",
    "trillion": "10^{12}",
    "dozen": "12",
}
REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"√ *(?:\(([^()]*)\)|([0-9]+|[a-zA-Z]))", r"\\sqrt{\1\2}"),
        (BOX.pattern, ""),  # around a part of the answer, or twice around all of it
        # Between digits these are no commas of a list, so they go before all become commas.
        (r"(?<=[0-9])(?:\{,\}|,\\!\s*|\\,)(?=[0-9]{3}(?![0-9]))", ""),
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
        (r" ?\\text ?\{ ?(?:percent(?:age)?|pct)(?![a-zA-Z]) ?", r"\\%\\text{"),  # what follows it may be a unit
    )
]
HAS_LETTERS = re.compile(r"[^\W\d_]")
ARITHMETIC = re.compile(r"[-+*/()0-9]*")  # is tidy, and spelled in one way: most answers need no more than this look
MIXED = re.compile(r"([-+]?[0-9]+) ([0-9]+)/([0-9]+)")
SCIENTIFIC = re.compile(r"[-+]?(?:[0-9]*\.[0-9]+e[-+]?|[0-9]+e)[0-9]+")  # 2e-5 may be 2e minus 5
BASED = re.compile(r"([0-9A-Z]+)_\{?([0-9]+)\}?")
SCALE = re.compile(rf"(?<=[0-9}}]) *(?:(\\text *\{{) *)?({'|'.join(SCALES)})s?(?![a-zA-Z])")
GROUPED = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])")
REPEATING = re.compile(r"(?<![0-9])([0-9]{0,30})\.([0-9]{0,30})\\(?:overline|bar)\{([0-9]{1,30})\}")
WRAPPED = re.compile(r"(?:\\text)? *\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")


def tidy(text: str) -> str:
    """Return the same answer without typography and units."""
    if ARITHMETIC.fullmatch(text):
        return text
    text = text.translate(PLAIN)
    for pattern, replacement in REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip().removeprefix("=").rstrip(".,;: ").strip()
    text = SCALE.sub(scaled, GROUPED.sub(ungrouped, text))
    text = without_units(REPEATING.sub(fraction, text))
    if SCIENTIFIC.fullmatch(text):
        return text.upper()
    mixed = MIXED.fullmatch(text)
    return rf"{mixed[1]}\frac{{{mixed[2]}}}{{{mixed[3]}}}" if mixed else text


def scaled(match: re.Match[str]) -> str:
    return rf"\times {SCALES[match[2]]}{match[1] or ''}"


def ungrouped(match: re.Match[str]) -> str:
    """Return digits without commas, unless the commas may be those of a list."""
    before = match.string[: match.start()]
    is_argument = before.endswith("{") and not before.endswith("\\{")  # as that of a root or a fraction
    return match[0].replace(",", "") if is_argument or ",0" in match[0] else match[0]


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

INTEGER = re.compile(
    r"(?:\\?[$€£¥])? ?([-+]?) ?(?:\\?[$€£¥])? ?"
    r"([0-9]{1,3}(?:[, ][0-9]{3}){1,1300}|[0-9]{1,4000})(?:\.0*)?"  # int() takes up to 4,300 digits
    r" ?(?:\^\\circ)?"
)


def integer(text: str) -> int | None:
    """Return the integer an answer is, however it is written; None for any other answer."""
    return integer_of_tidy(tidy(text))


def integer_of_tidy(text: str) -> int | None:
    """Return the integer a tidy answer is; None for any other answer."""
    while wrapped := WRAPPED.fullmatch(text):
        text = without_units(wrapped[1].strip(" ."))
    match = INTEGER.fullmatch(text)
    return int(match[1] + match[2].replace(",", "").replace(" ", "")) if match else None


# Judging


def quick_verdict(gold: str, answer: str) -> Verdict | None:
    """Returns the verdict on tidy answers where that is plain to see, else None."""
    wanted, given = integer_of_tidy(gold), integer_of_tidy(answer)
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
