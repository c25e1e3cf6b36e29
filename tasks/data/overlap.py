"""Pairs of problems from two sets that are equal or nearly equal in wording."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WORD = re.compile(r"[a-z]+|[0-9]+|[^\W\d_]")  # each Chinese character counts as a word
N = 8  # words of an n-gram
COMMON = 20  # an n-gram in more training problems than this is a phrase, such as "the answer is in the form ..."
# Share of a problem's n-grams within one training problem. On the AIME and AMC problems, phrases alone reach 0.31, and
# the lowest share of a reworded problem above the threshold is 0.60 (docs/data.md).
NEAR = 0.5


@dataclass(frozen=True)
class Match:
    """A pair of problems that overlap, by their positions in the two sets."""

    evaluated: int
    trained: int
    contained: bool  # the letters and digits of the one are a substring of the other's
    share: float  # of the n-grams of the evaluated problem


def matches(evaluated: Sequence[str], trained: Sequence[str]) -> list[Match]:
    """Return the pairs where the training problem contains the evaluated one, or has NEAR of its n-grams."""
    share = ngram_shares(evaluated, trained)
    contained = set(containments(evaluated, trained))
    near = {pair for pair, value in share.items() if value >= NEAR}
    overlapping = []
    for pair in sorted(contained | near):
        overlapping.append(Match(*pair, pair in contained, share.get(pair, 0.0)))
    return overlapping


def ngram_shares(evaluated: Sequence[str], trained: Sequence[str]) -> dict[tuple[int, int], float]:
    """Return the share of the evaluated problem's n-grams that the training problem has, for pairs with any in common.

    N-grams in more than COMMON training problems are not counted.
    """
    owners: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, text in enumerate(evaluated):
        for ngram in ngrams(text):
            owners[ngram].append(i)
    # N-grams of the evaluated problems alone, of which there are far fewer than of the training problems.
    hits = [ngrams(text) & owners.keys() for text in trained]
    frequency: Counter[tuple[str, ...]] = Counter()
    for ngrams_of_one in hits:
        frequency.update(ngrams_of_one)
    size: Counter[int] = Counter()
    for ngram, evaluated_with_it in owners.items():
        if frequency[ngram] <= COMMON:
            size.update(evaluated_with_it)
    common: Counter[tuple[int, int]] = Counter()
    for j, ngrams_of_one in enumerate(hits):
        for ngram in ngrams_of_one:
            if frequency[ngram] <= COMMON:
                for i in owners[ngram]:
                    common[i, j] += 1
    return {(i, j): number / size[i] for (i, j), number in common.items()}


def ngrams(text: str) -> set[tuple[str, ...]]:
    words = WORD.findall(text.lower())
    last = max(len(words) - N, 0)  # a shorter text is one n-gram
    return {tuple(words[i : i + N]) for i in range(last + 1)}


def containments(evaluated: Sequence[str], trained: Sequence[str]) -> Iterator[tuple[int, int]]:
    keys = list(map(letters_and_digits, trained))
    # One search in the joined text first: almost all problems are contained in none.
    everything = "\n".join(keys)
    for i, text in enumerate(evaluated):
        letters = letters_and_digits(text)
        if letters not in everything:
            continue
        for j, other in enumerate(keys):
            if letters in other:
                yield i, j


def letters_and_digits(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))
