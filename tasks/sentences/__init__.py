"""Sentences: write a sentence with a given word and a given number of words.

    Write a sentence of exactly 5 words with the word river.        ->        The river is very deep.

Problems are generated: a problem is a word of `words.py` and a number. Many answers are right, too many to count. Two
sentences are one answer if they have the same words, whatever their case and commas.

A response is one sentence up to its period, exclamation mark or question mark, and nothing else. No program can tell
whether it means something. The rules refuse the right answers that need no language, as a policy would find them:

- the word again and again, in other forms too, or any other word: all words differ in their stems, except that a
  function word such as "the" may come twice, not in a row
- lists of words: a quarter of the words are function words, and no more than a quarter are followed by a comma; a
  sentence has one number word at most
- letters in any order: a word has a vowel, no letter three times in a row, and at most 15 letters; the only
  words of one letter are "a" and "I"; digits and quotation marks are no part of a sentence
- sentences about the word: "word" and "sentence" are refused

What remains open: sentences without grammar or sense that keep these rules, invented words with vowels, compounds of
the word, and one sentence for all problems in which only the word changes. The last is what a loss of diversity looks
like; the count of distinct right answers does not see it, since it compares the answers to one problem.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import ClassVar

from harness.base.schema import number
from harness.base.task import Answer, Problem
from tasks.language import LanguageTask, check_order, counts_in_turn, split_of
from tasks.sentences.words import FUNCTION_WORDS, NUMBER_WORDS, SENTENCES, WORDS

SHORTEST, LONGEST = 3, 10  # sentences that there are worked examples of
QUARTER = 4
FUNCTION = frozenset(FUNCTION_WORDS.split())
NUMBERS = frozenset(NUMBER_WORDS.split())
ABOUT_WORDS = {"word", "words", "sentence", "sentences"}

SENTENCE = re.compile(r" ?([^.!?\n]+)[.!?]")
WORD = re.compile(r"[a-z]+(?:['-][a-z]+)?")
COMMA = re.compile("[,;:]")
TEXT = re.compile(rf"{WORD.pattern}(?:{COMMA.pattern}? {WORD.pattern})*")
MARKED = re.compile(r"\*(\w+)\*")
VOWEL = re.compile(r"[aeiouy]")
TRIPLE = re.compile(r"(.)\1\1")
LONGEST_WORD = 15
ENDINGS = re.compile(r"(?:'s|ing|ers?|est|i?ed|i?ly|i?es|[esy])$")
SHORTEST_STEM = 3


@dataclass(frozen=True)
class Sentences(LanguageTask):
    """Sentences of a given number of words with a given word, generated; many right answers."""

    name: ClassVar[str] = "sentences"

    least: int = number(4, least=SHORTEST, most=LONGEST)  # words in a sentence
    most: int = number(8, least=SHORTEST, most=LONGEST)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, self.least, self.most)

    def keys(self, split: str) -> list[str]:
        words = [word for word in WORDS.split() if split_of(word) == split]
        return [f"{count} {word}" for word in words for count in range(self.least, self.most + 1)]

    def prompt(self, key: str) -> str:
        count, word = key.split()
        return f"Write a sentence of exactly {count} words with the word {word}."

    def examples(self) -> list[tuple[str, str]]:
        """Return examples with all numbers of words in turn."""
        examples = []
        uses: Counter[int] = Counter()
        for count in counts_in_turn(self.least, self.most):
            marked = worked_sentences(count)[uses[count]]
            uses[count] += 1
            examples.append((f"{count} {MARKED.findall(marked)[0]}", marked.replace("*", "")))
        return examples

    def read(self, key: str, response: str) -> Answer | None:
        """Return the words of the sentence in lower case; those after its end are no part of it."""
        sentence = SENTENCE.match(response)
        if sentence is None:
            return None
        words = split_words(response)
        return Answer(None if words is None else " ".join(words), sentence.end())

    def is_right(self, key: str, response: str) -> bool:
        count, given = key.split()
        words = split_words(response) or ()
        few_commas = len(COMMA.findall(response)) * QUARTER <= len(words)
        return len(words) == int(count) and given in words and few_commas and is_language(words)

    def hindsight(self, problem: Problem, response: str) -> Problem:
        """Return the problem with the number of words that the response has."""
        _, given = problem.answer.split()
        return self.problem(f"{len(split_words(response) or ())} {given}", problem.shots)


@cache
def worked_sentences(count: int) -> list[str]:
    """Return the worked examples with this number of words, the given word between asterisks."""
    return [sentence for sentence in SENTENCES.strip().split("\n") if len(sentence.split()) == count]


@lru_cache(maxsize=4096)  # the verdict and the answer read the same text
def split_words(response: str) -> tuple[str, ...] | None:
    """Return the words of a response in lower case; None unless it is one sentence alone."""
    sentence = SENTENCE.fullmatch(response)
    text = sentence[1].replace("\u2019", "'").lower() if sentence else ""
    return tuple(WORD.findall(text)) if TEXT.fullmatch(text) else None


def is_language(words: tuple[str, ...]) -> bool:
    """Return whether words keep the rules against mechanical answers."""
    parts = [part for word in words for part in word.split("-")]
    function_words = Counter(part for part in parts if part in FUNCTION)
    stems = [stem(part) for part in parts if part not in FUNCTION]
    numbers = sum(word in NUMBERS for word in words)
    return (
        len(stems) == len(set(stems))
        and all(times <= 2 for times in function_words.values())
        and all(word != following for word, following in pairwise(words))
        and function_words.total() >= max(1, len(words) // QUARTER)
        and numbers <= 1
        and ABOUT_WORDS.isdisjoint(words)
        and all(map(is_spelled, words))
    )


def is_spelled(word: str) -> bool:
    """Return whether a word could be English by its letters."""
    if len(word) == 1:
        return word in "ai"
    return len(word) <= LONGEST_WORD and VOWEL.search(word) is not None and TRIPLE.search(word) is None


def stem(word: str) -> str:
    """Return the part of a word that its forms have in common, such as `run` of running and runs."""
    short = ENDINGS.sub("", word)
    if len(short) < SHORTEST_STEM:
        return word
    return short[:-1] if short[-1] == short[-2] else short
