"""Lists: write a few different members of a category, with a condition on their first letters.

    Write 3 different fruits that do not start with "b".        ->        apple, pear, cherry.

Problems are generated: a problem is a number of members, a category, a letter, and whether the letter is forbidden or
demanded. Members are the names in `members.py`. Order, case, articles and plurals do not count, and two names of one
thing are one member, so a right answer is a set of members, and the number of right answers is known.

A response is names with commas or "and" between them, a final period at most, and nothing else. The members are a
closed list, so no mechanical text is right. What remains open: a policy may learn one answer for each category, which
the count of distinct right answers shows; and a member that is missing in the list is judged wrong.
"""

from __future__ import annotations

import random
import re
import unicodedata
from dataclasses import dataclass
from functools import cache, lru_cache
from math import comb
from typing import ClassVar

from harness.base.schema import choice, number
from harness.base.task import Answer, Problem
from tasks.language import SHOTS, LanguageTask, check_order, counts_in_turn, digest, split_of
from tasks.lists.members import KINDS

WITHOUT, WITH = "without", "with"
RULES = {WITHOUT: "do not start", WITH: "start"}
FEWEST = {WITHOUT: 1, WITH: 10}  # members of a category that start with the letter of a problem
USUAL = 20  # worked examples have members from the start of a category's list, where the usual ones are

LINE = re.compile(r" ?([^.\n]+)\.?")
COMMA = re.compile(r", ?")
ARTICLE = re.compile(r"^(?:an?|the) ")
NAME = re.compile(r"[a-z](?:[a-z' -]*[a-z])?")


@dataclass(frozen=True)
class Lists(LanguageTask):
    """Different members of a category, generated; many right answers, all of them counted."""

    name: ClassVar[str] = "lists"

    least: int = number(2, least=1, most=6)  # members in an answer
    most: int = number(4, least=1, most=6)
    letters: str = choice(WITHOUT, (*RULES, "both"))  # whether a letter is forbidden or demanded; the latter is harder

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, self.least, self.most)

    def keys(self, split: str) -> list[str]:
        shown = {key for key, _ in self.examples()}
        keys = []
        for condition in self.conditions(split):
            keys += [f"{count} {condition}" for count in range(self.least, self.most + 1)]
        return [key for key in keys if key not in shown]

    def conditions(self, split: str) -> list[str]:
        """Return the keys of a split without the numbers of members, on which the split does not depend."""
        rules = RULES if self.letters == "both" else (self.letters,)
        return [condition for rule in rules for condition in conditions(rule) if split_of(condition) == split]

    def prompt(self, key: str) -> str:
        count, rule, letter, kind = parse_key(key)
        return f'Write {count} different {kind} that {RULES[rule]} with "{letter}".'

    def examples(self) -> list[tuple[str, str]]:
        """Return examples with different categories, and with all numbers of members."""
        examples: dict[str, tuple[str, str]] = {}  # by category
        for condition in sorted(self.conditions("train"), key=digest):
            kind = parse_key(f"0 {condition}")[-1]
            if kind in examples or len(examples) == SHOTS:
                continue
            count = counts_in_turn(self.least, self.most)[len(examples)]
            key = f"{count} {condition}"
            examples[kind] = key, usual_list(*parse_key(key), random.Random(digest(key)))
        return list(examples.values())

    def read(self, key: str, response: str) -> Answer | None:
        """Return the members in alphabetical order, each with its first name in the list; other names as they are."""
        line = LINE.match(response)
        if line is None:
            return None
        kind = parse_key(key)[-1]
        names = split_names(response, kind)
        members = None if names is None else ", ".join(sorted(members_of(kind).get(name, name) for name in names))
        return Answer(members, line.end())

    def is_right(self, key: str, response: str) -> bool:
        count, *condition = parse_key(key)
        kind = condition[-1]
        names = split_names(response, kind) or ()
        members = {members_of(kind)[name] for name in names if name in members_of(kind) and allows(name, *condition)}
        return len(names) == len(members) == count

    def solution(self, problem: Problem, rng: random.Random) -> str:
        """Return members of the category that are usual, as far as the rule leaves enough of them."""
        return usual_list(*parse_key(problem.answer), rng)

    def hindsight(self, problem: Problem, response: str) -> Problem:
        """Return the problem with the number of members that the response has."""
        _, *condition = parse_key(problem.answer)
        names = split_names(response, condition[-1]) or ()
        return self.problem(" ".join([str(len(names)), *condition]), problem.shots)

    def solutions(self, problem: Problem) -> int:
        """Return the number of right answers: the ways to choose members without regard to their order."""
        count, *condition = parse_key(problem.answer)
        return comb(len(allowed_members(*condition)), count)


# Problems


@cache
def parse_key(key: str) -> tuple[int, str, str, str]:
    """Return the number of members, the rule, the letter and the category of a problem."""
    count, rule, letter, kind = key.split(" ", 3)
    return int(count), rule, letter, kind


@cache
def conditions(rule: str) -> list[str]:
    """Return the rule with each category and each letter with which enough members of the category start."""
    found = []
    for kind in KINDS:
        for letter in "abcdefghijklmnopqrstuvwxyz":
            if len(allowed_members(WITH, letter, kind)) >= FEWEST[rule]:
                found.append(f"{rule} {letter} {kind}")
    return found


@cache
def allowed_members(rule: str, letter: str, kind: str) -> list[str]:
    """Return the members with a name that the rule allows, in the order of the list."""
    return list(dict.fromkeys(member for name, member in members_of(kind).items() if allows(name, rule, letter, kind)))


def allows(name: str, rule: str, letter: str, kind: str) -> bool:
    """Return whether the rule allows a name of the category: its own first letter counts, not that of a synonym."""
    return (name[0] == letter) == (rule == WITH)


def usual_list(count: int, rule: str, letter: str, kind: str, rng: random.Random) -> str:
    """Return a right response with usual members."""
    allowed = [name for name in allowed_members(rule, letter, kind) if allows(name, rule, letter, kind)]
    return ", ".join(rng.sample(allowed[:USUAL], count)) + "."


# Names


@cache
def members_of(kind: str) -> dict[str, str]:
    """Return the member of each name of a category; a member is its first name."""
    members = {}
    for entry in KINDS[kind].replace("\n", " ").split(","):
        names = entry.strip().split("=")
        for name in names:
            members[name] = names[0]
    plurals = {plural_of(name): member for name, member in members.items()}
    return plurals | members


def plural_of(name: str) -> str:
    """Return the regular plural of a name."""
    if re.search(r"[^aeiou]y$", name):
        return f"{name[:-1]}ies"
    return f"{name}es" if re.search(r"(?:s|x|z|ch|sh)$", name) else f"{name}s"


@lru_cache(maxsize=4096)  # the verdict and the answer read the same text
def split_names(response: str, kind: str) -> tuple[str, ...] | None:
    """Return the names in a response, in lower case and without articles; None if it is anything but names.

    A name of the category that contains "and", such as Trinidad and Tobago, is one name.
    """
    line = LINE.fullmatch(response)
    names: list[str] = []
    for part in COMMA.split(normal_text(line[1])) if line else ():
        piece = part.removeprefix("and ")
        whole = ARTICLE.sub("", piece, count=1)
        names += [whole] if whole in members_of(kind) else piece.split(" and ")
    names = [ARTICLE.sub("", name, count=1) for name in names]
    return tuple(names) if names and all(map(NAME.fullmatch, names)) else None


def normal_text(text: str) -> str:
    """Return a text in lower case without accents, and with straight apostrophes."""
    letters = unicodedata.normalize("NFKD", text.replace("\u2019", "'"))
    return "".join(letter for letter in letters if not unicodedata.combining(letter)).lower()
