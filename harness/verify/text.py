"""Answers in boxes: extraction, one normal spelling, and quick verdicts that need no algebra."""
# ruff: noqa: RUF001  it reads letters that look like other letters

from __future__ import annotations

import re

from harness.base.task import Answer, Verdict
from harness.verify.box import BOX, find_box, last_box

DEEPEST = 10  # nested brackets; the LaTeX parser takes seconds for twice as many


def extract(response: str) -> str | None:
    """Return the answer in the last box of a response; None if the box is missing, empty or cut off."""
    content = last_box(response) or ""
    answer = content.strip()
    backslashes = len(answer) - len(answer.rstrip("\\"))
    if backslashes % 2 and not content.endswith("\\"):
        answer += " "  # strip() has cut a command in half: a backslash with its space
    return answer or None


# Units

NOT_UNITS = frozenset(  # words that change the number before them, or make it something else than an answer
    re.findall(
        "[a-z]+",
        """
        zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
        eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
        hundred thousand million billion trillion dozen hundreds thousands millions billions trillions dozens
        tens score scores gross lakh lakhs crore crores negative negatives
        half halves third thirds fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths
        tenth tenths hundredth hundredths thousandth thousandths millionth millionths billionth billionths
        percent pct squared cubed factorial pi infinity infinite mod modulo base double triple twice
        and or nor but plus minus over than if unless when otherwise except else
        is are was were isn aren not no never none wrong false incorrect
        """,
    )
)
LETTERS = frozenset("mgshlLJNWVK")  # units if upright; all other single letters are variables
EXPONENT = r"(?: ?\^ ?(?:[1-3]|\{ ?-?[1-3] ?\}))"
LENGTHS = r"(?:[kcdm]m|in|ft|inch(?:es)?|foot|feet|yards?|miles?|(?:centi|kilo|milli)?met(?:er|re)s?|units?)"
HAN = (
    r"(?:平方|立方)?(?:厘米|分米|毫米|千米|公里|米)|千克|公斤|克|升|度|元|个|人|天|年|月|日|周|种|次|条|岁|只|页|张|"
    r"小时|分钟|秒|厘|平方"
)
BARE = (  # units without `\\text`; all other letters there are factors
    rf"(?:(?:sq(?:uare|\.)?|cubic) )?{LENGTHS}{EXPONENT}?|(?:square )?m{EXPONENT}|degrees?|deg|radians?|"
    r"dollars?|cents?|pounds?|euros?|rupees?|coins?|kg|grams?|lbs?|gal(?:lons?)?|lit(?:er|re)s?|acres?|hectares?|"
    r"years?|months?|weeks?|days?|hours?|minutes?|seconds?|hrs?|mins?|secs?|mph|kmph|km/h|"
    r"people|students?|men|women|soldiers?|monkeys?|apples?|tiles?|toys?|meals?|"
    rf"points?|marks?|digits?|edges?|ways|rounds|{HAN}"
)
# A unit ends an answer, an element of a list, an entry of a matrix, or an argument in braces.
LIST_WORD = r"(?:and|or)(?![a-zA-Z])"
END = rf"(?= ?(?:$|[,;:)\]}}&]|\\[}}\\]|\\right(?![a-zA-Z])|\\text ?\{{ ?,? ?{LIST_WORD} ?\}}|,? ?{LIST_WORD}))"
# Upright text without digits except those of an exponent; a list word alone is not a unit.
UPRIGHT = (
    rf"\\text ?\{{(?! ?,? ?{LIST_WORD} ?\}})((?:[^{{}}0-9\\^]|\^\\circ|\^[23]|\^\{{[23]\}}|(?<=m)[23])*)\}}{EXPONENT}?"
)
UPRIGHT_UNIT = re.compile(rf" ?{UPRIGHT}(?: ?(?:/|\\cdot)? ?{UPRIGHT})*{END}")
BARE_UNIT = re.compile(rf"(?<=[0-9)}}]) ?(?:{BARE}){END}|(?<=\\pi )(?:{BARE}){END}|(?<=\\circ) ?[CF]{END}")
# Meters as a whole answer: in 3 + 2m, m is a variable.
METERS = re.compile(r"([-+]?[0-9][0-9,]*(?:\.[0-9]*)?|[-+]?\.[0-9]+) ?m")
# A unit and a list word in one text: 7\text{ cm or }8 becomes 7\text{ cm},8.
LISTED = re.compile(rf"(?<=[0-9)}}\]])( ?\\text ?\{{[^{{}}0-9]*?[a-zA-Z.]) ?(?:,| {LIST_WORD}) ?\}}(?= ?[^ ,])")
# A number and its unit in one text: \text{5 cm} becomes 5\text{cm}.
UPRIGHT_NUMBER = re.compile(r"\\text ?\{ ?([-+]?[0-9][0-9.,/]*) ?([^{}0-9]+)\}")
WORDLESS_TEXT = re.compile(r"\\text ?\{[^{}0-9]*\}$")


def without_units(text: str) -> str:
    """Remove the units after the numbers of a tidy answer."""
    if not HAS_LETTERS.search(text):
        return text
    if "\\text" in text:
        if UPRIGHT_NUMBER.fullmatch(text):
            text = UPRIGHT_NUMBER.sub(r"\1\\text{\2}", text, count=1)
        text = LISTED.sub(r"\1},", text)
        text = UPRIGHT_UNIT.sub(dropped_unit, text)
    if METERS.fullmatch(text):
        text = METERS.sub(r"\1", text)
    return BARE_UNIT.sub("", text).strip().rstrip(".,;: ")


def dropped_unit(match: re.Match[str]) -> str:
    """Return the replacement of upright text: empty for a unit after a number, else the text itself."""
    before = match.string[: match.start()].rstrip()
    # A closing brace may also end a text without a number, such as \text{red} before \text{ eggs}.
    follows_number = bool(re.search(r"[0-9a-zA-Z)}\]!%]$", before)) and not WORDLESS_TEXT.search(before)
    degrees = before.endswith(r"\circ")
    words = re.sub(r"\\text|\\cdot", " ", match[0])
    return "" if follows_number and is_unit(words, degrees) else match[0]


def is_unit(text: str, degrees: bool) -> bool:
    """Return whether words after a number leave its value unchanged."""
    if not text.isascii():
        # The micro sign and the Greek letter mu are two characters that look alike.
        return re.fullmatch(rf"[ {{}}]*(?:{HAN}|[a-zµμΩÅ])+[ {{}}]*", text) is not None
    words = re.findall("[a-zA-Z]+", text)
    if len(words) == 1 and len(words[0]) == 1:
        return words[0] in LETTERS or (degrees and words[0] in "CF")
    return NOT_UNITS.isdisjoint(word.lower() for word in words)


def boxed_answer(response: str) -> Answer | None:
    """Return the answer in the last box of a response, in normal spelling.

    Answers with different spellings are different, such as 1/2 and 0.5: only the verifier knows that they are equal.
    """
    box = find_box(response)
    if box is None:
        return None
    text = extract(response)
    return Answer(None if text is None else normal_answer(text), box.end)


def normal_answer(text: str) -> str:
    number = integer(text)
    return spelling(tidy(text)) if number is None else str(number)


# Spelling

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
        (BOX.pattern, ""),  # a box around a part of the answer, or a second one around all of it
        # Between digits these are not commas of a list. They are removed before a later rule turns them into commas.
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
        (r" ?\\text ?\{ ?(?:percent(?:age)?|pct)(?![a-zA-Z]) ?", r"\\%\\text{"),  # a unit may follow
    )
]
HAS_LETTERS = re.compile(r"[^\W\d_]")
ARITHMETIC = re.compile(r"[-+*/()0-9]*")  # already tidy and in normal spelling, as most answers are
MIXED = re.compile(r"([-+]?[0-9]+) ([0-9]+)/([0-9]+)")
SCIENTIFIC = re.compile(r"[-+]?(?:[0-9]*\.[0-9]+e[-+]?|[0-9]+e)[0-9]+")  # not 2e-5, which may be 2e minus 5
BASED = re.compile(r"([0-9A-Z]+)_\{?([0-9]+)\}?")
SCALE = re.compile(rf"(?<=[0-9}}]) *(?:(\\text *\{{) *)?({'|'.join(SCALES)})s?(?![a-zA-Z])")
GROUPED = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])")
REPEATING = re.compile(r"(?<![0-9])([0-9]{0,30})\.([0-9]{0,30})\\(?:overline|bar)\{([0-9]{1,30})\}")
SIZED = re.compile(r"\\(?:left|right)(?![a-zA-Z])| ")
BRACKETED = {"set": re.compile(r"\\\{.*\\\}"), "tuple": re.compile(r"\(.*\)")}
# A set with a relation is a condition, which an interval may meet: \{x : 1 < x, x < 3\}.
RELATION = re.compile(r"[:<>=|]|\\(?:mid|vert|colon|in|ne|neq|[lg](?:e|eq|t))(?![a-zA-Z])")
WRAPPED = re.compile(r"(?:\\text)? *\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")


def tidy(text: str) -> str:
    """Return an answer without typography and units."""
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
    """Return digits without commas, unless the commas may separate a list."""
    before = match.string[: match.start()]
    is_argument = before.endswith("{") and not before.endswith("\\{")  # of a root or a fraction
    # An element of a list does not begin with 0 and more digits.
    return match[0].replace(",", "") if is_argument or ",0" in match[0] else match[0]


def fraction(match: re.Match[str]) -> str:
    """Return a repeating decimal as a fraction: 0.1\\overline{6} -> 15/90."""
    integer, fixed, period = match.groups()
    numerator = int(integer + fixed + period) - int(integer + fixed or "0")
    return rf"\frac{{{numerator}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"


def spelling(text: str) -> str:
    """Return a form in which equal spellings agree; answers of equal value may still differ."""
    if ARITHMETIC.fullmatch(text):
        return text
    text = re.sub(r"\\text *\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<![0-9]) | (?![0-9])", "", text)
    if "\\" not in text:  # \Delta is not \delta
        text = text.lower()
    choice = re.fullmatch(r"\(?([a-z])\)?", text)
    return choice[1] if choice else text


# Integers

INTEGER = re.compile(
    r"(?:\\?[$€£¥])? ?([-+]?) ?(?:\\?[$€£¥])? ?"
    r"([0-9]{1,3}(?:[, ][0-9]{3}){1,1300}|[0-9]{1,4000})(?:\.0*)?"  # int() takes up to 4,300 digits
    r" ?(?:\^\\circ)?"
)


def integer(text: str) -> int | None:
    """Return the value of an integer answer in any spelling; None for any other answer."""
    return integer_of_tidy(tidy(text))


def integer_of_tidy(text: str) -> int | None:
    """Return the value of a tidy integer answer; None for any other answer."""
    while wrapped := WRAPPED.fullmatch(text):
        text = without_units(wrapped[1].strip(" ."))
    match = INTEGER.fullmatch(text)
    if match is None:
        return None
    sign, digits = match[1], match[2].replace(",", "").replace(" ", "")
    return int(sign + digits)


# Judging


def quick_verdict(gold: str, answer: str) -> Verdict | None:
    """Return the verdict on a tidy answer if it needs no algebra, else None."""
    gold_integer, answer_integer = integer_of_tidy(gold), integer_of_tidy(answer)
    if gold_integer is not None and answer_integer is not None:
        return Verdict.RIGHT if gold_integer == answer_integer else Verdict.WRONG
    if spelling(gold) == spelling(answer):
        return Verdict.RIGHT
    # With a base on both sides, only the same spelling is right. Where the gold answer alone has one, algebra decides,
    # which leaves the base out.
    based = BASED.fullmatch(answer)
    if based and BASED.fullmatch(gold):
        return Verdict.WRONG
    if based and gold_integer is not None:
        return Verdict.RIGHT if value_in_base(*based.groups()) == gold_integer else Verdict.WRONG
    if {brackets(gold), brackets(answer)} == {"set", "tuple"}:
        return Verdict.WRONG
    return None if legible(answer) else Verdict.UNPARSED


def value_in_base(digits: str, base: str) -> int | None:
    """Return the value of a number with a base; None if it has none."""
    try:
        return int(digits, int(base))
    except ValueError:  # a digit of another base, or a base beyond 36
        return None


def brackets(text: str) -> str | None:
    """Return `set` for several elements in braces, `tuple` for several in round brackets, None for any other text."""
    text = SIZED.sub("", text)
    kind = next((kind for kind, pattern in BRACKETED.items() if pattern.fullmatch(text)), None)
    if kind is None or RELATION.search(text):
        return None
    depth = commas = 0
    for number, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if not depth and number < len(text) - 1 and letter != "\\":
            return None  # the first bracket ends before the text, as in (1,2)\cup(3,4)
        commas += letter == "," and depth == 1
    return kind if commas else None


def legible(answer: str) -> bool:
    """Return whether the LaTeX parser may get a text: printable, digits 0-9 only, brackets not nested too deep."""
    depth = deepest = 0
    for letter in answer:
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        deepest = max(deepest, depth)
        if not letter.isprintable() or (letter.isnumeric() and not letter.isascii()):
            return False
    return bool(answer) and deepest <= DEEPEST
