"""The real problem sets by name: their sources, their splits, and which clean problems are theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.base.errors import UserError, nearest
from harness.data import clean, overlap

TRAINED = "dapo_math"
# DAPO500 is the problems whose digest begins below this: the 500 smallest of the 17,173 that are clean. As a bound and
# not a rank, whether a problem is held out depends on its own text alone, in whatever copy it is met.
HELD_OUT_BELOW = "0796"
# Digests of the twelve problems that DAPO-Math-17k gives two answers; copies that dropped duplicates have only one.
CONFLICTS = (
    *("05b99618261b", "0bb97ecc1906", "11b94562acc8", "3c2ec6515636", "6fa8d42e2a4f", "a20fbdd4e8bb"),
    *("b0f8eb4a4f1f", "bc61a06cdc44", "d5740f7a71d1", "dc242b727392", "e8fbbe37f15f", "f97971b8d282"),
)
HELD_OUT, NOT_HELD_OUT, NEAR_HELD_OUT = "held out as dapo500", "for training", "near copy of a problem held out"
OTHER_CONTEST = "of another contest"
DAPO500 = "e525a98f6b8d71b0d2cc391a440f0e1f7ffc596e481f55bdf6f60312913ce455"  # fingerprint of what is held out


@dataclass(frozen=True)
class Split:
    problems: int | None = None  # None: as many as there are
    answers: str | None = None  # digest of the answers that the good copies agree on; there are copies with a wrong one


Problems = dict[str, str]  # problem -> answer
Selection = tuple[Problems, Counter[str]]  # what is kept, and how many are not, by reason


def everything(problems: Problems) -> Selection:
    return problems, Counter()


def divided(problems: Problems) -> tuple[Problems, Problems]:
    """Divides problems into those held out and the rest, in an order that does not depend on the copy they are from."""
    digests = {problem: clean.digest(problem) for problem in problems}
    ordered = sorted(problems, key=digests.__getitem__)
    held = {problem: problems[problem] for problem in ordered if digests[problem] < HELD_OUT_BELOW}
    return held, {problem: problems[problem] for problem in ordered if problem not in held}


def held_out(problems: Problems) -> Selection:
    held, rest = divided(problems)
    return held, Counter({NOT_HELD_OUT: len(rest)})


def for_training(problems: Problems) -> Selection:
    """Returns the problems that are neither held out nor say the same as one held out, in other words.

    A third of dapo500 has such a copy.
    """
    held, rest = divided(problems)
    texts = list(rest)
    near = {texts[match.trained] for match in overlap.matches(list(held), texts)}
    kept = {problem: answer for problem, answer in rest.items() if problem not in near}
    return kept, Counter({HELD_OUT: len(held), NEAR_HELD_OUT: len(near)})


@dataclass(frozen=True)
class Set:
    """One problem set: where its rows are from, what its splits must have, and which clean problems are its own."""

    source: str
    splits: Mapping[str, Split]
    answer: Callable[[str], str | None] = clean.integer
    select: Callable[[Problems], Selection] = everything
    fingerprint: str | None = None  # None: good copies may be worded differently


SETS = {
    "dapo_math": Set("dapo", {"train": Split()}, select=for_training),
    "dapo500": Set("dapo", {"test": Split(500)}, select=held_out, fingerprint=DAPO500),
    "aime24": Set("aime24", {"test": Split(30, "26b2e319e14bdec5")}),
    "aime25": Set("aime25", {"test": Split(30, "a0239316151158f3")}),
    "amc23": Set("amc23", {"test": Split(40, "395f5c1282d3240d")}),
    "math500": Set("math500", {"test": Split(500, "4563c132723345af")}, clean.verbatim),
    "gsm8k": Set("gsm8k", {"train": Split(7473, "36dad10be52d1e6d"), "test": Split(1319, "a7866b369c33070b")}),
}


def known(name: str) -> Set:
    if name not in SETS:
        raise UserError(f"unknown problem set {name!r}; {nearest(name, SETS)}")
    return SETS[name]
