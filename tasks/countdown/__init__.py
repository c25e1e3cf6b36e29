r"""Countdown: reach a target from a few given numbers, each used exactly once, with + - *.

    6 7 3=39:        ->        \boxed{(6*7)-3}

Problems are made here, from no data: a problem is a multiset of numbers with a target that they reach while every
intermediate value stays between 0 and the largest target. Most have several solutions, so diversity pays.

A response is one box and nothing else. Where text around the box was allowed, some policies learned not to stop after
it, and that text counted as entropy and as diversity.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
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
MULTISETS = 1000  # of numbers, at most: where there are more, a seeded draw of them
HELD_OUT = 10  # one problem in ten is for testing, another one for validation

BOX, CLOSING = "\\boxed{", "}"
LONGEST = 256  # characters of an expression
TOKENS = re.compile(r"[0-9]+|[-+*()]")  # not \d, which matches digits of every script
ALPHABET = re.compile(r"[-+*() 0-9]*")


@dataclass(frozen=True)
class Countdown:
    """Arithmetic puzzles, made here: reach a target from given numbers."""

    name: ClassVar[str] = "countdown"
    splits: ClassVar[tuple[str, ...]] = SPLITS

    count: int = number(3, least=2, most=5)  # numbers given
    largest: int = number(12, least=2, most=99)  # of them, from 1
    target: int = number(60, least=2, most=999)  # the largest target, and the largest intermediate value

    def __post_init__(self) -> None:
        check(Countdown, vars(self), "countdown.")

    def problems(self, split: str) -> list[Problem]:
        """Returns the problems of all multisets of numbers, or of a seeded draw of 1,000 where there are more."""
        check_split(self, split)
        return [make_problem(*key) for key in puzzle_keys(self, split)]

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        return [self.verdict(problem, response) for problem, response in pairs]

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        """Return the expression in the first box of each response, without spaces and redundant brackets.

        The order of operands counts: 6*7-3 and 7*6-3 are two answers. A response with any text beside its box has an
        end of its answer and no answer, as its verdict is unparsed.
        """
        return [read_answer(response) for _, response in pairs]

    def solutions(self, problem: Problem) -> int:
        """Return the number of right answers to a problem, whose intermediate values may leave the task's bounds."""
        return count_solutions(*parse_key(problem.answer))

    def flags(self, trained_on: str | None) -> list[str]:
        """Returns nothing: no training problem is among those for testing."""
        return []

    def verdict(self, problem: Problem, response: str) -> Verdict:
        """Return right for a box with an expression of the target's value that uses each number exactly once."""
        boxed = box_content(response)
        read = None if boxed is None else evaluate_expression(boxed)
        if read is None:
            return Verdict.UNPARSED
        numbers, target = parse_key(problem.answer)
        solved = read.value == target and tuple(sorted(read.used)) == numbers
        return Verdict.RIGHT if solved else Verdict.WRONG


def box_content(response: str) -> str | None:
    """Return the text in the box; None unless the response is one box, with no character before or after it.

    Spaces around the box are refused as well: a space is a token, and a policy could go on with it for ever.
    """
    if not response.startswith(BOX) or not response.endswith(CLOSING):
        return None
    return response[len(BOX) : -len(CLOSING)]


def read_answer(response: str) -> Answer | None:
    """Return the answer in the first box of a response, which ends with the first closing brace after its opening."""
    opening = response.find(BOX)
    closing = -1 if opening < 0 else response.find(CLOSING, opening + len(BOX))
    if closing < 0:
        return None
    boxed = box_content(response)
    read = None if boxed is None else evaluate_expression(boxed)
    return Answer(None if read is None else read.normal, closing + len(CLOSING))


class Expression(NamedTuple):
    """An expression that was read."""

    value: int
    used: tuple[int, ...]  # the numbers in it, in their order
    normal: str  # without spaces, leading zeros and redundant brackets


# A part of an expression: its value, its text, and the operator that is applied last in it, "" for a number. Plain
# tuples: every response of the training is read, and named ones take three times as long to make.
Operand = tuple[int, str, str]


def join_operands(operator: str, left: Operand, right: Operand) -> Operand:
    """Return two operands as one.

    Brackets stay where dropping them would change the value: around a sum or difference that is a factor, or that is
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
    """Return an expression with its value; None for all but numbers, + - * and brackets.

    It uses two stacks instead of recursion, so that no nesting is too deep. No sign may stand in front of a number or a
    bracket.
    """
    if len(text) > LONGEST or not ALPHABET.fullmatch(text):
        return None
    operands: list[Operand] = []
    pending: list[str] = []
    used: list[int] = []
    operand = True  # is due next

    def reduce() -> None:
        right, left = operands.pop(), operands.pop()
        operands.append(join_operands(pending.pop(), left, right))

    for token in TOKENS.findall(text):
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
    """Returns the split of a problem by its target and its numbers, whatever their order and the other options."""
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
    """Returns the problems of a split in the order of their digests, so that the first few are a fair draw."""
    everything = ((numbers, value) for numbers in multisets(task) for value in reachable(numbers, task.target))
    return sorted((key for key in everything if split_of(*key) == split), key=lambda key: puzzle_digest(*key))


def make_problem(numbers: Numbers, target: int) -> Problem:
    shuffled = random.Random(puzzle_digest(numbers, target)).sample(numbers, len(numbers))
    key = key_of(numbers, target)
    return Problem(id=key, prompt=puzzle_prompt(shuffled, target), answer=key)


def puzzle_prompt(numbers: list[int], target: int) -> str:
    return f"{' '.join(map(str, numbers))}={target}:"


# Expressions


@cache
def partitions(numbers: Numbers) -> list[tuple[Numbers, Numbers]]:
    """Returns the ways to give some numbers to the left operand and the others to the right one."""
    positions = range(len(numbers))
    found = set()
    for size in range(1, len(numbers)):
        for chosen in combinations(positions, size):
            left = tuple(numbers[i] for i in chosen)
            found.add((left, tuple(numbers[i] for i in positions if i not in chosen)))
    return sorted(found)


@cache
def reachable(numbers: Numbers, highest: int) -> frozenset[int]:
    """Returns the values of all expressions that use each number once and never leave 0..highest."""
    if len(numbers) == 1:
        return frozenset(number for number in numbers if number <= highest)
    found: set[int] = set()
    for left, right in partitions(numbers):
        if left <= right:  # the mirror image gives the same sums, products and non-negative differences
            for a in reachable(left, highest):
                for b in reachable(right, highest):
                    found.update((a + b, abs(a - b), a * b))
    return frozenset(value for value in found if value <= highest)


@cache
def last_steps(numbers: Numbers, value: int, highest: int) -> list[tuple[str, Numbers, int, Numbers, int]]:
    """Returns every last operation that gives this value: its sign, and the numbers and the value of both operands."""
    steps = []
    for left, right in partitions(numbers):
        rights = reachable(right, highest)
        for a in reachable(left, highest):
            factors = [value // a] if a and value % a == 0 else rights if a == value == 0 else ()
            candidates = (("+", [value - a]), ("-", [a - value]), ("*", factors))
            steps += [(sign, left, a, right, b) for sign, bs in candidates for b in bs if b in rights]
    return sorted(steps)


class Ways(NamedTuple):
    """For each value, the number of expressions in normal form that use some numbers once, by their last operator."""

    single: Counter[int]
    sums: Counter[int]
    products: Counter[int]


@lru_cache(maxsize=256)  # four numbers reach thousands of values, so that all of a split would not fit into memory
def ways(numbers: Numbers) -> Ways:
    """Return the expressions in normal form over some numbers.

    Each is built in one way alone, from the left: the right operand of + is not a sum, that of * is not a product,
    since their brackets would be redundant.
    """
    found = Ways(Counter(numbers if len(numbers) == 1 else ()), Counter(), Counter())
    for left, right in partitions(numbers):
        rights = ways(right)
        any_right = add_counts(*rights)
        terms, factors = add_counts(rights.single, rights.products), add_counts(rights.single, rights.sums)
        for a, lefts in add_counts(*ways(left)).items():
            for b, count in terms.items():
                found.sums[a + b] += lefts * count
            for b, count in any_right.items():
                found.sums[a - b] += lefts * count
            for b, count in factors.items():
                found.products[a * b] += lefts * count
    return found


def add_counts(*counts: Counter[int]) -> Counter[int]:
    """Return the sum of some counts; unlike Counter's own +, without a look at every sign."""
    found: Counter[int] = Counter()
    for each in counts:
        found.update(each)
    return found


@cache
def count_solutions(numbers: Numbers, target: int) -> int:
    """Return the number of expressions in normal form that use each number once and have the target's value.

    Only the last operation looks for the target, which spares listing all values of all numbers.
    """
    found = int(numbers == (target,))
    for left, right in partitions(numbers):
        rights = ways(right)
        any_right = add_counts(*rights)
        terms, factors = add_counts(rights.single, rights.products), add_counts(rights.single, rights.sums)
        for a, lefts in add_counts(*ways(left)).items():
            found += lefts * (terms[target - a] + any_right[a - target])
            if a != 0 and target % a == 0:
                found += lefts * factors[target // a]
            elif a == target == 0:
                found += lefts * factors.total()
    return found


def expression(rng: random.Random, numbers: Numbers, value: int, highest: int) -> str:
    """Draws an expression of this value; every operand that is not a number stands in brackets."""
    if len(numbers) == 1:
        return str(value)
    sign, left, a, right, b = rng.choice(last_steps(numbers, value, highest))
    parts = ((left, expression(rng, left, a, highest)), (right, expression(rng, right, b, highest)))
    return sign.join(text if len(operand) == 1 else f"({text})" for operand, text in parts)


def examples(task: Countdown, seed: int, solving: float) -> Iterator[tuple[str, str]]:
    """Yields prompts of training problems with responses, for ever.

    This share of them solves its problem. The rest are any expressions over the given numbers, so that a model learns
    to write answers before it is good at them.
    """
    rng = random.Random(seed)
    train = puzzle_keys(task, "train")
    while True:
        numbers, target = rng.choice(train)
        value = target if rng.random() < solving else rng.choice(sorted(reachable(numbers, task.target)))
        text = expression(rng, numbers, value, task.target)
        yield puzzle_prompt(rng.sample(numbers, len(numbers)), target), f"{BOX}{text}{CLOSING}"
