"""The process that judges answers: is this LaTeX equal to that one, by math-verify and sympy?

Started by harness.verify.pool as `python -m harness.verify.judge LIMIT_S MEMORY`, and imported by nothing else. It
loads sympy once and forks. The child reads one question a line; the kernel's timer may kill it at any moment, or its
memory may run out. The parent, which sees no answers, then says so in its place, and forks the next child in a few
milliseconds.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import math
import os
import re
import resource
import signal
import sys
import zlib
from collections.abc import Callable
from typing import Any

import latex2sympy2_extended.latex2sympy2
import math_verify.grader
import sympy.core.random
import sympy.parsing.sympy_parser
import sympy.physics.units
from latex2sympy2_extended import NormalizationConfig, normalize_latex
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy, convert_to_pct
from math_verify.grader import should_treat_as_complex
from math_verify.parser import get_last_eq
from sympy import Basic, Expr, Float, Integer, MatrixBase, MatrixExpr, Rational, Symbol
from sympy.concrete.expr_with_limits import ExprWithLimits
from sympy.core.cache import clear_cache
from sympy.core.evalf import PrecisionExhausted
from sympy.core.function import AppliedUndef

Size = tuple[int, float]  # sign (0: not known) and log10 of the absolute value

NORMAL = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
HUGE = 10_000  # decimal digits; numbers of more are compared by their sizes
TOO_LARGE = 10_000_000  # decimal digits; numbers of more are not evaluated
PLACES = 6  # decimals that an approximate answer must have right
EXACT_PLACES = 12  # where the gold answer is an integer, which needs no approximation
CERTAIN_DIGITS = 1000  # exact values that agree to so many digits, of their largest term, are equal
SEEN_ENOUGH = 75  # exit code of a child that has answered, but whose state is not to be trusted any more
HUNDREDTH = sympy.UnevaluatedExpr(Rational(1, 100))  # as the parser writes a percent
INEXACT = (
    *(Float, sympy.UnevaluatedExpr, ExprWithLimits, sympy.Limit, sympy.Derivative, AppliedUndef),
    *(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan, MatrixExpr, MatrixBase),
)
PERCENT = re.compile(r"(.*[)}a-zA-Z]) *\\?%")  # of what is no plain number, which the grammar does not have
NUMBERS = re.compile(r"(?:Integer|Float|Rational|[-+*/(). 0-9'])*")
# Texts of every kind that the grammar knows: the first of a kind takes ten times as long as the second.
WARM_UP = (
    r"\frac{1}{2}+3\sqrt{5}",
    r"x^2-2x",
    r"(1,2)",
    r"\{1,2\}",
    r"\begin{pmatrix}1\\2\end{pmatrix}",
    "x=1",
    r"\text{a}",
)


class Unparsed(Exception):
    """The answer is no mathematics that can be read."""


class Exhausted(BaseException):
    """Memory or stack is used up. Not an Exception: the libraries turn all of those into `not equal`."""


class LatexParser(_Latex2Sympy):
    """The parser of math-verify, but numbers are read literally."""

    def parse_number(self, text: str) -> sympy.Number:
        return literal_number(text)

    def convert_postfix_list(self, arr: list[Any], i: int = 0) -> Any:
        """Returns a product, unless it is written as a mixed number; the parser itself takes 2(3) for 2 + 3."""
        texts = [part.getText() for part in arr]
        bare = [re.fullmatch(r"[0-9.]+", text) for text in texts]
        if any(map(all, itertools.pairwise(bare))):
            raise Unparsed("two numbers with nothing between them")
        factors = [self.convert_postfix(part) for part in arr]
        if any(isinstance(factor, list) for factor in factors):
            raise Unparsed("a derivative")
        if len(factors) > 1 and is_digits(texts[0]) and re.fullmatch(r"\\frac\{[0-9]+\}\{[0-9]+\}", texts[1]):
            factors[:2] = [factors[0] + factors[1]]
        product = factors[-1]
        for factor in reversed(factors[:-1]):
            matrix = getattr(factor, "is_Matrix", False) or getattr(product, "is_Matrix", False)
            product = self.mat_mul_flat(factor, product) if matrix else self.mul_flat(factor, product)
        return product

    def convert_binom(self, binom: Any) -> sympy.Expr:
        return sympy.binomial(self.convert_expr(binom.upper), self.convert_expr(binom.lower), evaluate=False)


def literal_number(text: str) -> sympy.Number:
    """Reads a number, in place of the parser's own function, which lets Python evaluate the text."""
    text = re.sub("[, ]", "", text)
    if is_digits(text):
        return Integer(text)
    if not re.fullmatch(r"-?[0-9]*\.?[0-9]+(E[-+]?[0-9]{1,3})?", text):
        raise Unparsed(f"{text[:40]} is no number")
    return Float(text)


def is_digits(text: str) -> bool:
    return re.fullmatch(r"[0-9]+", text) is not None


def parse_latex(text: str, is_real: bool) -> Basic | MatrixBase:
    """Reads a text as mathematics.

    Raises Unparsed where the grammar has no place for the text, and what the libraries raise where they break.
    """
    normal = normalize_latex(text, NORMAL)
    percent = PERCENT.fullmatch(normal)
    if percent:
        return convert_to_pct(parse_latex(percent[1], is_real))
    try:
        read_as = LatexParser(is_real=is_real).parse(normal)
    except Exception as error:
        last = get_last_eq(normal)
        if last != normal:
            return parse_latex(last, is_real)
        if type(error) is Exception:  # so the parser raises its syntax errors
            raise Unparsed(str(error).splitlines()[0]) from error
        raise
    return as_decimal(read_as)


def as_decimal(x: Basic | MatrixBase) -> Basic | MatrixBase:
    """Returns one decimal for a term with decimals, since sympy calls no decimal equal to an integer."""
    known = isinstance(x, Expr) and x.is_number and x.has(Float) and not x.has(sympy.UnevaluatedExpr)
    return x.evalf() if known and not has_too_large_number(x) else x


def judge_answer(gold_text: str, answer_text: str) -> tuple[str, str]:
    """Returns a verdict, and the reason for it where it is neither right nor wrong."""
    is_real = not (should_treat_as_complex(gold_text) or should_treat_as_complex(answer_text))
    try:
        gold = parse_latex(gold_text, is_real)
    except Unparsed as error:
        return "error", f"the gold answer cannot be read: {error}"
    try:
        answer = parse_latex(answer_text, is_real)
    except Unparsed as error:
        return "unparsed", str(error)
    if certainly_different(gold, answer):
        return "wrong", ""
    if has_too_large_number(answer):
        return "error", f"numbers of more than {TOO_LARGE:,} digits in it"
    equal = math_verify.grader.verify(
        gold,
        answer,
        allow_set_relation_comp=True,
        timeout_seconds=None,
        raise_on_error=True,
    )
    return ("right" if equal else "wrong"), ""


# Values and sizes


def certainly_different(gold: Basic, answer: Basic) -> bool:
    """Tells whether two expressions have values far apart.

    That is the common case, and it is faster to see than that they are equal.
    """
    if isinstance(gold, sympy.Eq) != isinstance(answer, sympy.Eq):
        gold, answer = last_side(gold), last_side(answer)
    of_gold, of_answer = number_size(gold), number_size(answer)
    if of_gold is None or of_answer is None:
        return False
    if isinstance(gold, Symbol) or isinstance(answer, Symbol):
        return False  # a word, which may equal the product of its letters
    if is_beyond(HUGE, of_gold) or is_beyond(HUGE, of_answer):
        return not math.isclose(of_gold[1], of_answer[1], rel_tol=1e-6)
    if gold.has(sympy.UnevaluatedExpr) or answer.has(sympy.UnevaluatedExpr):
        return False  # a percentage, which may be meant as the number of percents
    values = {symbol: symbol_value(symbol) for symbol in gold.free_symbols | answer.free_symbols}
    gold_value = gold.evalf(subs=values)
    return abs(gold_value - answer.evalf(subs=values)) > max(1e-4 * abs(gold_value), 1e-12)


def last_side(expression: Basic) -> Basic:
    return expression.args[-1] if isinstance(expression, sympy.Eq) else expression


def symbol_value(symbol: Symbol) -> float:
    """Returns any number, but always the same for a symbol: expressions that are equal are so for all values."""
    return 1 + zlib.crc32(symbol.name.encode()) / 2**32


def has_too_large_number(x: Basic) -> bool:
    return any(is_beyond(TOO_LARGE, number_size(part)) for part in sympy.preorder_traversal(x))


def is_beyond(digits: int, found: Size | None) -> bool:
    """Tells whether a number of this size has more than so many digits, before or after its decimal point."""
    return found is not None and found[1] != -math.inf and abs(found[1]) > digits


def number_size(x: Basic) -> Size | None:
    """Returns the size of a number without evaluating it; None for what is no number, or where it is not certain."""
    if isinstance(x, Rational):
        return (x.p > 0) - (x.p < 0), math.log10(abs(x.p)) - math.log10(x.q) if x.p and x.q else -math.inf
    if isinstance(x, Float) or x is sympy.pi or x is sympy.E:
        number = float(x)
        return ((number > 0) - (number < 0), math.log10(abs(number))) if number and math.isfinite(number) else None
    if isinstance(x, Symbol):
        return 1, math.log10(symbol_value(x))
    rule = SIZES.get(type(x))
    if rule is None:
        return None
    parts = [number_size(part) for part in x.args]
    return None if None in parts else rule(*parts)


def size_of_product(*factors: Size) -> Size | None:
    log = sum(log for _, log in factors)
    certain = abs(log) >= 1e-9 * max(abs(log) for _, log in factors)  # False for nan too
    return (math.prod(sign for sign, _ in factors), log) if certain else None


def size_of_sum(*terms: Size) -> Size | None:
    sign, log = max(terms, key=lambda term: term[1])
    others = [other for other in terms if other[0] != sign]
    certain = sign and all(log - other[1] > 1 + math.log10(len(terms)) for other in others)
    return (sign, log) if certain else None


def size_of_power(base: Size, exponent: Size) -> Size | None:
    if base[1] == -math.inf or (not exponent[0] and exponent[1] != -math.inf):
        return None
    times = exponent[0] * power_of_ten(exponent[1])
    return (1 if base[0] > 0 else 0), base[1] * times if base[1] and times else 0.0


def size_of_factorial(number: Size) -> Size | None:
    if number[0] < 0:
        return None
    value = power_of_ten(number[1])
    return 1, math.lgamma(value + 1) / math.log(10) if value < 1e300 else math.inf


def size_of_binomial(upper: Size, lower: Size) -> Size | None:
    n, k = power_of_ten(upper[1]), power_of_ten(lower[1])
    if upper[0] <= 0 or lower[0] <= 0 or not k <= n < 1e15:
        return None
    return 1, (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(10)


def power_of_ten(log: float) -> float:
    return 10.0**log if log < 308 else math.inf


SIZES: dict[type, Callable[..., Size | None]] = {
    sympy.Mul: size_of_product,
    sympy.Add: size_of_sum,
    sympy.Pow: size_of_power,
    sympy.exp: lambda exponent: size_of_power((1, math.log10(math.e)), exponent),
    sympy.factorial: size_of_factorial,
    sympy.binomial: size_of_binomial,
    sympy.Abs: lambda number: (1, number[1]),
    sympy.UnevaluatedExpr: lambda number: number,
}


def places(gold: Basic) -> int:
    """Returns the decimals to compare, as many as show the leading digits of a small number."""
    if isinstance(gold, Integer):
        return EXACT_PLACES
    found = number_size(gold)
    return PLACES if found is None or not -300 < found[1] < -1 else PLACES - 1 - math.floor(found[1])


# Equal values


def comparing_values(decimals_agree: Callable[..., bool]) -> Callable[..., bool]:
    """Wrap math-verify's numeric comparison, which takes exact values below 1e-15 for zero."""

    def call(gold: Basic, answer: Basic, _: int, precision: int) -> bool:
        return any(agree(one, other, precision) for one, other in meanings(gold, answer))

    def agree(gold: Basic, answer: Basic, precision: int) -> bool:
        equal = exactly_equal(gold, answer)
        if equal is not None:
            return equal
        decimals = places(gold)
        if isinstance(gold, Float) or isinstance(answer, Float):  # in sympy 50.0 and 50 are not equal
            gold, answer = (x.evalf() if isinstance(x, Integer) else x for x in (gold, answer))
        return decimals_agree(gold, answer, decimals, precision)

    return call


def proving_equal(proof: Callable[..., bool]) -> Callable[..., bool]:
    """Wrap math-verify's symbolic comparison, which takes seconds where two long numbers differ in one digit."""

    def call(gold: Basic, answer: Basic) -> bool:
        return exactly_equal(gold, answer) is not False and proof(gold, answer)

    return call


def meanings(gold: Basic, answer: Basic) -> list[tuple[Basic, Basic]]:
    """Return the pairs of values to compare: 50 % may be meant as 50 and as 1/2."""
    of_gold, of_answer = percents(gold), percents(answer)
    if of_gold is not None and of_answer is not None:
        return [(of_gold, of_answer)]
    if of_gold is not None:
        return [(of_gold, answer), (of_gold / 100, answer)]
    if of_answer is not None:
        return [(gold, of_answer), (gold, of_answer / 100)]
    return [(gold, answer)]


def percents(x: Basic) -> Expr | None:
    """Return the number of percents of a percentage; None for any other value."""
    if not isinstance(x, sympy.Mul) or x.args[-1] != HUNDREDTH:
        return None
    return sympy.Mul(*x.args[:-1])


def exactly_equal(gold: Basic, answer: Basic) -> bool | None:
    """Tell whether two exact values are equal; None where one is not exact, or where their symbols leave it open."""
    if not (is_exact(gold) and is_exact(answer)):
        return None
    symbols = gold.free_symbols | answer.free_symbols
    if not symbols:
        gold, answer = try_doit(gold), try_doit(answer)
        if isinstance(gold, Rational) and isinstance(answer, Rational):
            return bool(gold == answer)
    values = {symbol: symbol_value(symbol) for symbol in symbols}
    equal_here = None if symbols else True
    try:
        # Strict: both digits of the difference are right, however much of it cancels; a zero has none to give.
        difference = (gold - answer).evalf(2, subs=values, maxn=CERTAIN_DIGITS, strict=True)
    except PrecisionExhausted:
        return equal_here
    except (ArithmeticError, AttributeError, TypeError, ValueError):  # as sympy raises where it cannot compute
        return None
    if difference.is_zero:
        return equal_here
    return False if difference.is_number else None


def is_exact(x: Basic) -> bool:
    """Tell whether a value has no decimals in it, and can be computed to any precision."""
    return isinstance(x, Expr) and not x.has(*INEXACT)


# The process


def numbers_only(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    def call(code: str, *names: dict[str, Any]) -> Any:
        if not NUMBERS.fullmatch(code):
            raise RuntimeError("text was about to be evaluated as code")
        return evaluate(code, *names)

    return call


def unswallowed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function whose callers swallow every Exception, so that a lack of memory or stack still shows."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (MemoryError, RecursionError) as error:
            raise Exhausted(type(error).__name__) from error

    return call


def try_doit(expression: Any) -> Any:
    """Evaluates an expression as far as that goes."""
    try:
        return unswallowed(expression.doit)()
    except (ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError):
        return expression


def patch_libraries() -> None:
    """Keeps sympy from evaluating strings as Python wherever it meets them.

    Its own constants, such as S("3/2"), are all it may evaluate.
    """
    sympy.parsing.sympy_parser.eval_expr = numbers_only(sympy.parsing.sympy_parser.eval_expr)
    latex2sympy2_extended.latex2sympy2.convert_number = literal_number
    grader = math_verify.grader
    grader.simplify = unswallowed(grader.simplify)
    grader.solve = unswallowed(grader.solve)
    grader.safe_sympy_doit = try_doit
    grader.sympy_numeric_eq = comparing_values(grader.sympy_numeric_eq)
    grader.sympy_symbolic_eq = proving_equal(grader.sympy_symbolic_eq)
    logging.disable()  # math-verify warns that its own timeouts are off


def answer_question(line: bytes) -> tuple[str, str]:
    clear_cache()  # so that a verdict does not depend on the answers before it
    sympy.core.random.seed(0)
    try:
        return judge_answer(*json.loads(line))
    except Exception as error:  # whatever the libraries raise: the verdict says that it happened
        return "error", f"{type(error).__name__}: {str(error)[:200]}"
    except Exhausted as error:
        return "error", str(error)


def write_reply(out: int, verdict: str, reason: str) -> None:
    os.write(out, json.dumps([verdict, reason]).encode() + b"\n")


def answer_questions(out: int, limit_s: float) -> int:
    """Answers questions until there are none; the kernel ends what takes longer, whatever the interpreter is doing."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        verdict, reason = answer_question(line)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_reply(out, verdict, reason)
        if verdict == "error":
            return SEEN_ENOUGH
    return 0


def main(limit_s: float, memory: int) -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is not a reply
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    patch_libraries()
    for text in WARM_UP:
        judge_answer(text, text)
    gc.collect()
    gc.freeze()
    write_reply(out, "ready", "")
    while True:
        child = os.fork()
        if child == 0:
            os._exit(answer_questions(out, limit_s))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        if code == -signal.SIGALRM:
            write_reply(out, "timeout", f"more than {limit_s:g} s")
        elif code != SEEN_ENOUGH:
            write_reply(
                out, "error", f"the process ended by {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
            )
