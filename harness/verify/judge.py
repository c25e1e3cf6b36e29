"""The process that compares answers in LaTeX with math-verify and sympy.

harness.verify.pool starts it by calling `main`; nothing else imports this module. Loading sympy takes about a second.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
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

from harness.verify.server import limit_process, serve

Size = tuple[int, float]  # sign (0: not known) and log10 of the absolute value

# Units are removed before, by the stricter rule of harness.verify.text.
NORMAL = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
HUGE = 10_000  # decimal digits; larger numbers are compared by their logarithms
TOO_LARGE = 10_000_000  # decimal digits; larger numbers are not evaluated
PLACES = 6  # decimals that must agree in an approximate answer
EXACT_PLACES = 12  # if the gold answer is an integer, which needs no approximation
CERTAIN_DIGITS = 1000  # exact values that agree to this many digits of their largest term count as equal
HUNDREDTH = sympy.UnevaluatedExpr(Rational(1, 100))  # the factor by which the parser represents a percent sign
INEXACT = (  # parts of expressions that cannot be computed to any precision, or are not numbers
    *(Float, sympy.UnevaluatedExpr, ExprWithLimits, sympy.Limit, sympy.Derivative, AppliedUndef),
    *(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan, MatrixExpr, MatrixBase),
)
PERCENT = re.compile(r"(.*[)}a-zA-Z]) *\\?%")  # the grammar only has percentages of plain numbers
# The only code that sympy may evaluate: its own numeric constants.
NUMBERS = re.compile(r"(?:Integer|Float|Rational|[-+*/(). 0-9'])*")
# One text of each kind in the grammar. The first text of a kind takes ten times as long as the second, and a fork keeps
# the caches of the parent.
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
    """The answer cannot be parsed."""


class Exhausted(BaseException):
    """Memory or stack is used up. Not an Exception, since the libraries turn each Exception into `not equal`."""


class LatexParser(_Latex2Sympy):
    """The parser of math-verify, with numbers read literally."""

    def parse_number(self, text: str) -> sympy.Number:
        return literal_number(text)

    def convert_postfix_list(self, arr: list[Any], i: int = 0) -> Any:
        """Return the product of adjacent factors, or the sum of a mixed number.

        The parser itself reads every number before a fraction or a bracket as a mixed number: 2(3) as 2 + 3.
        """
        texts = [part.getText() for part in arr]
        bare = [re.fullmatch(r"[0-9.]+", text) for text in texts]
        for left, right in itertools.pairwise(bare):
            if left and right:
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
        # Unevaluated: a large binomial coefficient would be computed while the text is parsed.
        return sympy.binomial(self.convert_expr(binom.upper), self.convert_expr(binom.lower), evaluate=False)


def literal_number(text: str) -> sympy.Number:
    """Read a number; replaces the parser's function, which evaluates the text as Python code."""
    text = re.sub("[, ]", "", text)
    if is_digits(text):
        return Integer(text)
    if not re.fullmatch(r"-?[0-9]*\.?[0-9]+(E[-+]?[0-9]{1,3})?", text):
        raise Unparsed(f"{text[:40]} is not a number")
    return Float(text)


def is_digits(text: str) -> bool:
    return re.fullmatch(r"[0-9]+", text) is not None


def parse_latex(text: str, is_real: bool) -> Basic | MatrixBase:
    """Parse LaTeX.

    Raises Unparsed if the text is not in the grammar. Other exceptions are failures of the libraries.
    """
    normal = normalize_latex(text, NORMAL)
    percent = PERCENT.fullmatch(normal)
    if percent:
        return convert_to_pct(parse_latex(percent[1], is_real))
    try:
        parsed = LatexParser(is_real=is_real).parse(normal)
    except Exception as error:
        last = get_last_eq(normal)  # the part after its last equals sign
        if last != normal:
            return parse_latex(last, is_real)
        if type(error) is Exception:  # the parser raises syntax errors as bare Exceptions
            raise Unparsed(str(error).splitlines()[0]) from error
        raise
    return as_decimal(parsed)


def as_decimal(x: Basic | MatrixBase) -> Basic | MatrixBase:
    """Return the value of a term with decimals as one decimal: for sympy, no decimal equals an integer."""
    has_decimals = isinstance(x, Expr) and x.is_number and x.has(Float) and not x.has(sympy.UnevaluatedExpr)
    return x.evalf() if has_decimals and not has_too_large_number(x) else x


def judge_answer(gold_text: str, answer_text: str) -> tuple[str, str]:
    """Return the verdict, and a reason if it is neither right nor wrong."""
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
        timeout_seconds=None,  # its timeouts need signal handlers, which run only between Python instructions
        raise_on_error=True,
    )
    return ("right" if equal else "wrong"), ""


# Values and sizes


def certainly_different(gold: Basic, answer: Basic) -> bool:
    """Return whether the values of two expressions are far apart.

    Most wrong answers are, and this is much faster than an attempt to prove that they are equal.
    """
    if isinstance(gold, sympy.Eq) != isinstance(answer, sympy.Eq):
        # x = 5 answers 5, too.
        gold, answer = last_side(gold), last_side(answer)
    of_gold, of_answer = number_size(gold), number_size(answer)
    if of_gold is None or of_answer is None:
        return False
    if isinstance(gold, Symbol) or isinstance(answer, Symbol):
        return False  # a word may equal the product of its letters
    if is_beyond(HUGE, of_gold) or is_beyond(HUGE, of_answer):
        return not math.isclose(of_gold[1], of_answer[1], rel_tol=1e-6)
    if gold.has(sympy.UnevaluatedExpr) or answer.has(sympy.UnevaluatedExpr):
        return False  # a percentage may mean its number of percents
    values = {symbol: symbol_value(symbol) for symbol in gold.free_symbols | answer.free_symbols}
    gold_value = gold.evalf(subs=values)
    # More than `places` allows: rounded decimals differ by up to 1e-5 of the gold answer.
    return abs(gold_value - answer.evalf(subs=values)) > max(1e-4 * abs(gold_value), 1e-12)


def last_side(expression: Basic) -> Basic:
    return expression.args[-1] if isinstance(expression, sympy.Eq) else expression


def symbol_value(symbol: Symbol) -> float:
    """Return an arbitrary but fixed value: equal expressions are equal for all values of their symbols."""
    return 1 + zlib.crc32(symbol.name.encode()) / 2**32


def has_too_large_number(x: Basic) -> bool:
    return any(is_beyond(TOO_LARGE, number_size(part)) for part in sympy.preorder_traversal(x))


def is_beyond(digits: int, of_number: Size | None) -> bool:
    """Return whether a number has more than this many digits before, or zeros after, its decimal point."""
    return of_number is not None and of_number[1] != -math.inf and abs(of_number[1]) > digits


def number_size(x: Basic) -> Size | None:
    """Return the size of a number without evaluating it; None if it is not a number or its size is uncertain."""
    if isinstance(x, Rational):
        log = math.log10(abs(x.p)) - math.log10(x.q) if x.p and x.q else -math.inf
        return (x.p > 0) - (x.p < 0), log
    if isinstance(x, Float) or x is sympy.pi or x is sympy.E:
        number = float(x)
        if not number or not math.isfinite(number):
            return None
        return (number > 0) - (number < 0), math.log10(abs(number))
    if isinstance(x, Symbol):
        return 1, math.log10(symbol_value(x))
    rule = SIZES.get(type(x))
    if rule is None:
        return None
    parts = [number_size(part) for part in x.args]
    return None if None in parts else rule(*parts)


def size_of_product(*factors: Size) -> Size | None:
    signs, logs = zip(*factors, strict=True)
    log = sum(logs)
    # Logarithms that cancel leave nothing but rounding. False for NaN too.
    certain = abs(log) >= 1e-9 * max(map(abs, logs))
    return (math.prod(signs), log) if certain else None


def size_of_sum(*terms: Size) -> Size | None:
    sign, log = max(terms, key=lambda term: term[1])
    others = [other for other in terms if other[0] != sign]
    # Terms of the opposite sign may cancel the largest one, unless all of them together are ten times smaller.
    certain = sign and all(log - other[1] > 1 + math.log10(len(terms)) for other in others)
    return (sign, log) if certain else None


def size_of_power(base: Size, exponent: Size) -> Size | None:
    # An exponent of 0 also has the sign 0, but its size is known.
    if base[1] == -math.inf or (not exponent[0] and exponent[1] != -math.inf):
        return None
    times = exponent[0] * power_of_ten(exponent[1])
    sign = 1 if base[0] > 0 else 0  # whether an exponent is even is not known
    log = base[1] * times if base[1] and times else 0.0  # 0 times infinity would be NaN
    return sign, log


def size_of_factorial(number: Size) -> Size | None:
    if number[0] < 0:
        return None
    value = power_of_ten(number[1])
    # lgamma overflows from about 1e305.
    log = math.lgamma(value + 1) / math.log(10) if value < 1e300 else math.inf
    return 1, log


def size_of_binomial(upper: Size, lower: Size) -> Size | None:
    n, k = power_of_ten(upper[1]), power_of_ten(lower[1])
    # From 1e15 on, the differences of lgamma below are mostly rounding errors.
    if upper[0] <= 0 or lower[0] <= 0 or not k <= n < 1e15:
        return None
    return 1, (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(10)


def power_of_ten(log: float) -> float:
    # Floats end below 1.8e308, and a power beyond that raises OverflowError.
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
    """Return the number of decimals to compare: more for a small number, so that its leading digits are compared."""
    if isinstance(gold, Integer):
        return EXACT_PLACES
    gold_size = number_size(gold)
    if gold_size is None or not -300 < gold_size[1] < -1:
        return PLACES
    return PLACES - 1 - math.floor(gold_size[1])


# Equal values


def comparing_values(decimals_agree: Callable[..., bool]) -> Callable[..., bool]:
    """Wrap math-verify's numeric comparison, which treats exact values below 1e-15 as zero."""

    def call(gold: Basic, answer: Basic, _: int, precision: int) -> bool:
        return any(agree(one, other, precision) for one, other in meanings(gold, answer))

    def agree(gold: Basic, answer: Basic, precision: int) -> bool:
        equal = exactly_equal(gold, answer)
        if equal is not None:
            return equal
        decimals = places(gold)
        if isinstance(gold, Float) or isinstance(answer, Float):  # in sympy 50.0 and 50 are not equal
            gold, answer = as_float(gold), as_float(answer)
        return decimals_agree(gold, answer, decimals, precision)

    return call


def as_float(x: Basic) -> Basic:
    """Return an integer as a float; any other value unchanged."""
    return x.evalf() if isinstance(x, Integer) else x


def proving_equal(proof: Callable[..., bool]) -> Callable[..., bool]:
    """Wrap math-verify's symbolic comparison, which takes seconds if two long numbers differ in one digit."""

    def call(gold: Basic, answer: Basic) -> bool:
        return exactly_equal(gold, answer) is not False and proof(gold, answer)

    return call


def meanings(gold: Basic, answer: Basic) -> list[tuple[Basic, Basic]]:
    """Return the pairs of values to compare: 50 % may mean 50 or 1/2."""
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
    """Return whether two exact values are equal; None if one is not exact or their symbols leave it open."""
    if not (is_exact(gold) and is_exact(answer)):
        return None
    symbols = gold.free_symbols | answer.free_symbols
    if not symbols:
        gold, answer = try_doit(gold), try_doit(answer)
        if isinstance(gold, Rational) and isinstance(answer, Rational):
            return bool(gold == answer)
    values = {symbol: symbol_value(symbol) for symbol in symbols}
    # With symbols, a difference at one point is a proof, and equal values there are not.
    equal_here = None if symbols else True
    try:
        # With strict=True both digits are right, however much of the difference cancels; a difference of zero raises.
        difference = (gold - answer).evalf(2, subs=values, maxn=CERTAIN_DIGITS, strict=True)
    except PrecisionExhausted:
        return equal_here
    except (ArithmeticError, AttributeError, TypeError, ValueError):  # raised by sympy if it cannot compute a value
        return None
    if difference.is_zero:
        return equal_here
    return False if difference.is_number else None


def is_exact(x: Basic) -> bool:
    """Return whether a value contains no decimals and can be computed to any precision."""
    return isinstance(x, Expr) and not x.has(*INEXACT)


# The process


def numbers_only(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that evaluates code, so that it accepts numeric constants only."""

    def call(code: str, *names: dict[str, Any]) -> Any:
        if not NUMBERS.fullmatch(code):
            raise RuntimeError("text was about to be evaluated as code")
        return evaluate(code, *names)

    return call


def unswallowed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function whose callers swallow every Exception, so that a lack of memory or stack is still reported."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (MemoryError, RecursionError) as error:
            raise Exhausted(type(error).__name__) from error

    return call


def try_doit(expression: Any) -> Any:
    """Return the evaluated expression, or the expression itself if sympy cannot evaluate it."""
    try:
        return unswallowed(expression.doit)()
    except (ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError):
        return expression


def patch_libraries() -> None:
    """Replace functions of sympy and math-verify that would evaluate a model's text as code, or swallow failures.

    sympy evaluates strings as Python in many places. After this, it can evaluate its own constants only, such as
    S("3/2").
    """
    sympy.parsing.sympy_parser.eval_expr = numbers_only(sympy.parsing.sympy_parser.eval_expr)
    latex2sympy2_extended.latex2sympy2.convert_number = literal_number
    grader = math_verify.grader
    grader.simplify = unswallowed(grader.simplify)
    grader.solve = unswallowed(grader.solve)
    grader.safe_sympy_doit = try_doit
    grader.sympy_numeric_eq = comparing_values(grader.sympy_numeric_eq)
    grader.sympy_symbolic_eq = proving_equal(grader.sympy_symbolic_eq)
    logging.disable()  # math-verify warns for each answer that its own timeouts are off


def answer_question(line: bytes) -> tuple[str, str]:
    # A verdict must not depend on earlier answers: sympy keeps results in a cache and tests some equalities at random
    # points.
    clear_cache()
    sympy.core.random.seed(0)
    try:
        return judge_answer(*json.loads(line))
    except Exception as error:  # the libraries raise many types; the verdict reports it
        return "error", f"{type(error).__name__}: {str(error)[:200]}"
    except Exhausted as error:
        return "error", str(error)


def main(limit_s: float, memory: int) -> None:
    out = limit_process(memory)
    patch_libraries()
    for text in WARM_UP:
        judge_answer(text, text)
    serve(answer_question, out, limit_s)
