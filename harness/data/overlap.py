"""Finds the problems of one set that also stand, in the same words or in others, in another set."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WORD = re.compile(r"[a-z]+|[0-9]+|[^\W\d_]")  # one Chinese character counts as a word
N = 8  # words of an n-gram
COMMON = 20  # an n-gram in more trained problems than this is a phrase, no evidence: "the answer is in the form ..."
NEAR = 0.5  # share of a problem's n-grams, within one other problem, from which the two count as the same


@dataclass(frozen=True)
class Match:
    evaluated: int
    trained: int
    contained: bool  # its letters and digits, in a row
    share: float  # of its n-grams


def key(text: str) -> str:
    """Returns the letters and digits alone, in lower case."""
    return "".join(filter(str.isalnum, text.lower()))


def grams(text: str) -> set[tuple[str, ...]]:
    words = WORD.findall(text.lower())
    return {tuple(words[i : i + N]) for i in range(max(len(words) - N + 1, 1))}


def shares(evaluated: Sequence[str], trained: Sequence[str]) -> dict[tuple[int, int], float]:
    """Returns, for each pair of problems, which share of the evaluated one's n-grams the trained one has.

    Pairs without any in common are left out.
    """
    where: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, text in enumerate(evaluated):
        for gram in grams(text):
            where[gram].append(i)
    hits = [grams(text) & where.keys() for text in trained]
    frequency = Counter(gram for found in hits for gram in found)
    size = Counter(i for gram, owners in where.items() if frequency[gram] <= COMMON for i in owners)
    common = Counter(
        (i, j) for j, found in enumerate(hits) for gram in found if frequency[gram] <= COMMON for i in where[gram]
    )
    return {(i, j): number / size[i] for (i, j), number in common.items()}


def containments(evaluated: Sequence[str], trained: Sequence[str]) -> Iterator[tuple[int, int]]:
    keys = [key(text) for text in trained]
    everything = "\n".join(keys)
    for i, text in enumerate(evaluated):
        letters = key(text)
        if letters in everything:
            yield from ((i, j) for j, other in enumerate(keys) if letters in other)


def matches(evaluated: Sequence[str], trained: Sequence[str]) -> list[Match]:
    """Returns the pairs where one problem contains the other, or is near it in n-grams."""
    share = shares(evaluated, trained)
    contained = set(containments(evaluated, trained))
    pairs = contained | {pair for pair, value in share.items() if value >= NEAR}
    return [Match(i, j, (i, j) in contained, share.get((i, j), 0.0)) for i, j in sorted(pairs)]
