"""The problem sets by name: source, splits, and the selection of cleaned problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.base.errors import UserError, nearest
from tasks.data import clean, overlap

TRAINED = "dapo_math"
# DAPO500 holds the problems whose digest begins below this: the 500 smallest of the 17,173 clean ones. With a bound
# instead of a rank, the text of a problem alone decides whether it is held out, in any copy or subset.
HELD_OUT_BELOW = "0796"
# Digests of the twelve problems that have two answers in DAPO-Math-17k. A copy without duplicates has lost one answer
# of each, so the conflict cannot be found there.
CONFLICTS = (
    *("05b99618261b", "0bb97ecc1906", "11b94562acc8", "3c2ec6515636", "6fa8d42e2a4f", "a20fbdd4e8bb"),
    *("b0f8eb4a4f1f", "bc61a06cdc44", "d5740f7a71d1", "dc242b727392", "e8fbbe37f15f", "f97971b8d282"),
)
HELD_OUT, NOT_HELD_OUT, NEAR_HELD_OUT = "held out as dapo500", "for training", "near copy of a problem held out"
DAPO500 = "e525a98f6b8d71b0d2cc391a440f0e1f7ffc596e481f55bdf6f60312913ce455"  # fingerprint


@dataclass(frozen=True)
class Split:
    """The expected content of a split; None: not checked."""

    problems: int | None = None
    answers: str | None = None  # digest of the answers; published copies of AIME 2024 include one with a wrong answer


Problems = dict[str, str]  # problem -> answer
Selection = tuple[Problems, Counter[str]]  # the kept problems, and the number of dropped ones by reason


def select_all(problems: Problems) -> Selection:
    return problems, Counter()


def select_held_out(problems: Problems) -> Selection:
    held, rest = divide_held_out(problems)
    return held, Counter({NOT_HELD_OUT: len(rest)})


def select_for_training(problems: Problems) -> Selection:
    """Select the problems that are not held out and not a near copy of one that is.

    153 of the 500 problems of dapo500 have such a near copy.
    """
    held, rest = divide_held_out(problems)
    texts = list(rest)
    near = {texts[match.trained] for match in overlap.matches(list(held), texts)}
    kept = {problem: answer for problem, answer in rest.items() if problem not in near}
    return kept, Counter({HELD_OUT: len(held), NEAR_HELD_OUT: len(near)})


def divide_held_out(problems: Problems) -> tuple[Problems, Problems]:
    """Return the held-out problems and the rest, both ordered by digest: no copy's order matters."""
    digests = {problem: clean.problem_digest(problem) for problem in problems}
    ordered = sorted(problems, key=digests.__getitem__)
    held: Problems = {}
    rest: Problems = {}
    for problem in ordered:
        part = held if digests[problem] < HELD_OUT_BELOW else rest
        part[problem] = problems[problem]
    return held, rest


@dataclass(frozen=True)
class Set:
    """A problem set: source, expected splits, form of the answers, and selection of its problems."""

    source: str
    splits: Mapping[str, Split]
    answer: Callable[[str], str | None] = clean.integer_answer
    select: Callable[[Problems], Selection] = select_all
    fingerprint: str | None = None  # None: copies may differ in wording


SETS = {
    "dapo_math": Set("dapo", {"train": Split()}, select=select_for_training),
    "dapo500": Set("dapo", {"test": Split(500)}, select=select_held_out, fingerprint=DAPO500),
    "aime24": Set("aime24", {"test": Split(30, "26b2e319e14bdec5")}),
    "aime25": Set("aime25", {"test": Split(30, "a0239316151158f3")}),
    "amc23": Set("amc23", {"test": Split(40, "395f5c1282d3240d")}),
    "math500": Set("math500", {"test": Split(500, "4563c132723345af")}, clean.verbatim_answer),
    "gsm8k": Set("gsm8k", {"train": Split(7473, "36dad10be52d1e6d"), "test": Split(1319, "a7866b369c33070b")}),
}


def problem_set(name: str) -> Set:
    if name not in SETS:
        raise UserError(f"unknown problem set {name!r}; {nearest(name, SETS)}")
    return SETS[name]
