r"""Countdown: reach a target from a few given numbers, each used exactly once, with + - *.

    6 7 3=39:        ->        \boxed{(6*7)-3}

Problems are generated: a problem is a multiset of numbers with a target that they can reach with intermediate values
between 0 and the largest target. Most have several solutions, so diversity helps.

A response is one box and nothing else. When text around the box was allowed, some policies learned not to stop after
it, and that text counted as entropy and as diversity.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations, combinations_with_replacement
from math import comb
from operator import add, mul, sub
from typing import ClassVar, NamedTuple

from harness.base.schema import check, number
from harness.base.task import SPLITS, Answer, Problem, Verdict, Verifier, check_split

Numbers = tuple[int, ...]  # in ascending order

OPERATORS = {"+": add, "-": sub, "*": mul}
SUMS = ("+", "-")  # operators of the same rank
MULTISETS = 1000  # most multisets of numbers; if there are more, a seeded sample is used
HELD_OUT = 10  # one problem in ten is for testing, another one for validation

BOX, CLOSING = "\\boxed{", "}"
LONGEST = 256  # characters of an expression
TOKENS = re.compile(r"[0-9]+|[-+*()]")  # not \d, which matches digits of every script
ALPHABET = re.compile(r"[-+*() 0-9]*")


@dataclass(frozen=True)
class Countdown:
    """Arithmetic puzzles, generated: reach a target from given numbers."""

    name: ClassVar[str] = "countdown"
    splits: ClassVar[tuple[str, ...]] = SPLITS

    count: int = number(3, least=2, most=5)  # numbers in a problem
    largest: int = number(12, least=2, most=99)  # the largest number; the smallest is 1
    target: int = number(60, least=2, most=999)  # the largest target, and the largest intermediate value of a problem

    def __post_init__(self) -> None:
        check(Countdown, vars(self), "countdown.")

    def problems(self, split: str) -> list[Problem]:
        """Return the problems of all multisets of numbers, or of a seeded sample of 1,000 if there are more."""
        check_split(self, split)
        return [make_problem(*key) for key in puzzle_keys(self, split)]

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        return [self.verdict(problem, response) for problem, response in pairs]

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        """Return the expression in the first box of each response, without spaces and redundant brackets.

        The order of operands counts: 6*7-3 and 7*6-3 are two answers. If a response has text outside its box, its
        verdict is unparsed, so the text of its answer is None; the end of the answer is still known.
        """
        return [read_answer(response) for _, response in pairs]

    def solutions(self, problem: Problem) -> int:
        """Return the number of right answers to a problem; their intermediate values may exceed the task's bounds."""
        return count_solutions(*parse_key(problem.answer))

    def flags(self, trained_on: str | None) -> list[str]:
        """Return no warnings: no training problem is used for testing."""
        return []

    def verdict(self, problem: Problem, response: str) -> Verdict:
        """Return right if the box contains an expression with the target's value that uses each number exactly once."""
        boxed = box_content(response)
        read = None if boxed is None else evaluate_expression(boxed)
        if read is None:
            return Verdict.UNPARSED
        numbers, target = parse_key(problem.answer)
        solved = read.value == target and tuple(sorted(read.used)) == numbers
        return Verdict.RIGHT if solved else Verdict.WRONG


def box_content(response: str) -> str | None:
    """Return the text in the box; None unless the response is one box, with no character before or after it.

    Spaces around the box are rejected too: a space is a token, and a policy could repeat it forever.
    """
    if not response.startswith(BOX) or not response.endswith(CLOSING):
        return None
    return response[len(BOX) : -len(CLOSING)]


def read_answer(response: str) -> Answer | None:
    """Return the answer in the first box of a response; the box ends with the first closing brace."""
    opening = response.find(BOX)
    closing = -1 if opening < 0 else response.find(CLOSING, opening + len(BOX))
    if closing < 0:
        return None
    boxed = box_content(response)
    read = None if boxed is None else evaluate_expression(boxed)
    return Answer(None if read is None else read.normal, closing + len(CLOSING))


class Expression(NamedTuple):
    """A parsed expression."""

    value: int
    used: tuple[int, ...]  # the numbers in it, in their order
    normal: str  # without spaces, leading zeros and redundant brackets


# A part of an expression: its value, its text, and the operator that is applied last in it, "" for a number. Plain
# tuples, since every response of the training is parsed, and named tuples take three times as long to create.
Operand = tuple[int, str, str]


def join_operands(operator: str, left: Operand, right: Operand) -> Operand:
    """Return the combination of two operands.

    Brackets are kept only if the value would change without them: around a sum or difference that is multiplied or
    subtracted.
    """
    left_value, first, left_operator = left
    right_value, second, right_operator = right
    if operator == "*" and left_operator in SUMS:
        first = f"({first})"
    if operator != "+" and right_operator in SUMS:
        second = f"({second})"
    return OPERATORS[operator](left_value, right_value), first + operator + second, operator


@lru_cache(maxsize=4096)  # the verdict and the answer read the same text
def evaluate_expression(text: str) -> Expression | None:
    """Parse an expression of numbers, + - * and brackets; return None for any other text.

    Two stacks replace recursion, so that no nesting is too deep. Signs in front of numbers or brackets are not allowed.
    """
    if len(text) > LONGEST or not ALPHABET.fullmatch(text):
        return None
    operands: list[Operand] = []
    pending: list[str] = []
    used: list[int] = []
    operand = True  # whether an operand must come next

    def reduce() -> None:
        right, left = operands.pop(), operands.pop()
        operands.append(join_operands(pending.pop(), left, right))

    for token in TOKENS.findall(text):
        # Numbers and opening brackets begin an operand; operators and closing brackets follow one.
        if operand != (token == "(" or token.isdigit()):
            return None
        if token == "(":
            pending.append(token)
        elif operand:
            used.append(int(token))
            operands.append((used[-1], str(used[-1]), ""))
            operand = False
        elif token == ")":
            while pending and pending[-1] != "(":
                reduce()
            if not pending:
                return None
            pending.pop()
        else:
            # First the earlier operators of the same or a higher rank, so that 5-3-1 is (5-3)-1.
            while pending and pending[-1] != "(" and (token != "*" or pending[-1] == "*"):
                reduce()
            pending.append(token)
            operand = True
    if operand or "(" in pending:
        return None
    while pending:
        reduce()
    value, normal, _ = operands[0]
    return Expression(value, tuple(used), normal)


# Problems


def key_of(numbers: Numbers, target: int) -> str:
    return f"{','.join(map(str, numbers))}={target}"


@cache
def parse_key(key: str) -> tuple[Numbers, int]:
    numbers, _, target = key.partition("=")
    return tuple(int(number) for number in numbers.split(",")), int(target)


def puzzle_digest(numbers: Numbers, target: int) -> int:
    return int.from_bytes(hashlib.sha256(key_of(numbers, target).encode()).digest()[:8])


def split_of(numbers: Numbers, target: int) -> str:
    """Return the split of a problem; it depends on the target and the numbers only, not on the task's options."""
    return {0: "test", 1: "validation"}.get(puzzle_digest(numbers, target) % HELD_OUT, "train")


@cache
def multisets(task: Countdown) -> list[Numbers]:
    total = comb(task.largest + task.count - 1, task.count)
    if total <= MULTISETS:
        return list(combinations_with_replacement(range(1, task.largest + 1), task.count))
    rng = random.Random(0)
    drawn: set[Numbers] = set()
    while len(drawn) < MULTISETS:
        drawn.add(tuple(sorted(rng.randint(1, task.largest) for _ in range(task.count))))
    return sorted(drawn)


@cache
def puzzle_keys(task: Countdown, split: str) -> list[tuple[Numbers, int]]:
    """Return the problems of a split in the order of their digests, so that the first few are a random sample."""
    all_keys = ((numbers, value) for numbers in multisets(task) for value in reachable(numbers, task.target))
    in_split = [key for key in all_keys if split_of(*key) == split]
    return sorted(in_split, key=lambda key: puzzle_digest(*key))


def make_problem(numbers: Numbers, target: int) -> Problem:
    shuffled = random.Random(puzzle_digest(numbers, target)).sample(numbers, len(numbers))
    key = key_of(numbers, target)
    return Problem(id=key, prompt=puzzle_prompt(shuffled, target), answer=key)


def puzzle_prompt(numbers: list[int], target: int) -> str:
    return f"{' '.join(map(str, numbers))}={target}:"


# Expressions


@cache
def partitions(numbers: Numbers) -> list[tuple[Numbers, Numbers]]:
    """Return the ways to split numbers into those of the left and those of the right operand."""
    positions = range(len(numbers))
    pairs = set()
    for size in range(1, len(numbers)):
        for chosen in combinations(positions, size):
            left = tuple(numbers[i] for i in chosen)
            right = tuple(numbers[i] for i in positions if i not in chosen)
            pairs.add((left, right))
    return sorted(pairs)


@cache
def reachable(numbers: Numbers, highest: int) -> frozenset[int]:
    """Return the values of all expressions that use each number once and whose values stay within 0..highest."""
    if len(numbers) == 1:
        return frozenset(number for number in numbers if number <= highest)
    values: set[int] = set()
    for left, right in partitions(numbers):
        if left <= right:  # the mirrored partition gives the same sums, products and non-negative differences
            for a in reachable(left, highest):
                for b in reachable(right, highest):
                    values.update((a + b, abs(a - b), a * b))
    return frozenset(value for value in values if value <= highest)


@cache
def last_steps(numbers: Numbers, value: int, highest: int) -> list[tuple[str, Numbers, int, Numbers, int]]:
    """Return all last operations with this value: the sign, and the numbers and the value of both operands."""
    steps = []
    for left, right in partitions(numbers):
        rights = reachable(right, highest)
        for a in reachable(left, highest):
            factors: Collection[int] = ()
            if a and value % a == 0:
                factors = [value // a]
            elif a == value == 0:
                factors = rights
            candidates = (("+", [value - a]), ("-", [a - value]), ("*", factors))
            steps += [(sign, left, a, right, b) for sign, bs in candidates for b in bs if b in rights]
    return sorted(steps)


class Ways(NamedTuple):
    """The number of expressions in normal form over some numbers for each value, by their last operator."""

    single: Counter[int]
    sums: Counter[int]
    products: Counter[int]


@lru_cache(maxsize=256)  # bounded: four numbers reach thousands of values, so a whole split would not fit in memory
def ways(numbers: Numbers) -> Ways:
    """Return the numbers of expressions in normal form over some numbers.

    Each expression is counted once, built from the left: the right operand of + is not a sum, and that of * is not a
    product, since their brackets would be redundant.
    """
    result = Ways(Counter(numbers if len(numbers) == 1 else ()), Counter(), Counter())
    for left, right in partitions(numbers):
        rights = ways(right)
        any_right = add_counts(*rights)
        terms, factors = add_counts(rights.single, rights.products), add_counts(rights.single, rights.sums)
        for a, lefts in add_counts(*ways(left)).items():
            for b, count in terms.items():
                result.sums[a + b] += lefts * count
            for b, count in any_right.items():
                result.sums[a - b] += lefts * count
            for b, count in factors.items():
                result.products[a * b] += lefts * count
    return result


def add_counts(*counts: Counter[int]) -> Counter[int]:
    """Return the sum of some counters; faster than Counter's own +, which checks the sign of every count."""
    result: Counter[int] = Counter()
    for counter in counts:
        result.update(counter)
    return result


@cache
def count_solutions(numbers: Numbers, target: int) -> int:
    """Return the number of expressions in normal form that use each number once and have the target's value.

    Only the last operation is searched for the target, so the values of all numbers together are never listed.
    """
    solutions = int(numbers == (target,))
    for left, right in partitions(numbers):
        rights = ways(right)
        any_right = add_counts(*rights)
        terms, factors = add_counts(rights.single, rights.products), add_counts(rights.single, rights.sums)
        for a, lefts in add_counts(*ways(left)).items():
            # a + b and a - b with the target's value; a Counter has 0 for a value that nothing reaches.
            solutions += lefts * (terms[target - a] + any_right[a - target])
            if a != 0 and target % a == 0:
                solutions += lefts * factors[target // a]
            elif a == target == 0:
                solutions += lefts * factors.total()
    return solutions


def expression(rng: random.Random, numbers: Numbers, value: int, highest: int) -> str:
    """Return a random expression with this value; every operand that is not a number is in brackets."""
    if len(numbers) == 1:
        return str(value)
    sign, left, a, right, b = rng.choice(last_steps(numbers, value, highest))
    parts = ((left, expression(rng, left, a, highest)), (right, expression(rng, right, b, highest)))
    return sign.join(text if len(operand) == 1 else f"({text})" for operand, text in parts)


def examples(task: Countdown, seed: int, solving: float) -> Iterator[tuple[str, str]]:
    """Yield prompts of training problems with responses, without end.

    The share `solving` of the responses is right. The other responses are random expressions over the same numbers, so
    that a model learns the form of an answer without solving every problem.
    """
    rng = random.Random(seed)
    train = puzzle_keys(task, "train")
    while True:
        numbers, target = rng.choice(train)
        value = target if rng.random() < solving else rng.choice(sorted(reachable(numbers, task.target)))
        text = expression(rng, numbers, value, task.target)
        yield puzzle_prompt(rng.sample(numbers, len(numbers)), target), f"{BOX}{text}{CLOSING}"
