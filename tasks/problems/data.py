"""A data set of one's own in splits, without copies and without problems of the evaluation sets."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from harness.base.errors import UserError
from harness.base.task import SPLITS
from harness.base.units import plural
from tasks.data import cache, clean, overlap
from tasks.data.sets import SETS
from tasks.problems import rows

DIGITS = 52  # of a digest in binary, as a fraction below 1 that a float holds exactly


@dataclass(frozen=True)
class Source:
    """The file of a data set, how its rows are read, and the shares of the splits."""

    name: str  # for messages
    file: Path
    problem: str  # columns
    answer: str
    validation: float
    test: float
    splits: tuple[str, ...]  # those with a share
    shots: int  # problems that are set aside as worked examples


@dataclass(frozen=True)
class Data:
    """The problems of a data set, and what was left out of it."""

    splits: dict[str, dict[str, str]]  # answers by problem, in the order of the problems' digests
    shots: dict[str, str]
    rows: int
    copies: int  # of problems of other rows
    overlaps: dict[str, int]  # problems left out of train and validation, by the evaluation set that has them
    absent: list[str]  # evaluation sets that are not on this machine, with which no problem was compared

    @cached_property
    def digest(self) -> str:
        """The digest of all problems with their use; it ignores the order of the rows."""
        lines = []
        for use, problems in {**self.splits, "shots": self.shots}.items():
            lines += [json.dumps([use, *pair]) for pair in problems.items()]
        return cache.digest_lines(lines)[:12]

    @property
    def counts(self) -> str:
        """The numbers of rows, copies, problems by split, and problems left out."""
        sizes = [f"{len(problems):,} {split}" for split, problems in self.splits.items()]
        left_out = [f"{number:,} that {name} has" for name, number in self.overlaps.items()]
        text = f"{plural(self.rows, 'row')}, {plural(self.copies, 'copy', 'copies')}; problems: {', '.join(sizes)}"
        return f"{text}; left out of training: {', '.join(left_out)}" if left_out else text


def read(source: Source) -> Data:
    """Return the problems of a data set; a file that has not changed is read once."""
    fingerprints = tuple((card["name"], card["fingerprint"]) for card in map(cache.find_card, SETS) if card)
    return read_once(source, rows.last_change(source.file), fingerprints)


@lru_cache(maxsize=16)
def read_once(source: Source, stamp: object, fingerprints: object) -> Data:
    problems, copies = rows.distinct(rows.file_rows(source.file, source.name), source.problem, source.answer)
    shares = {"validation": source.validation, "test": source.test}
    splits: dict[str, dict[str, str]] = {split: {} for split in SPLITS}
    for problem in sorted(problems, key=clean.problem_digest):
        splits[split_of(problem, shares)][problem] = problems[problem]
    sets_by_problem, absent = evaluated(splits["train"] | splits["validation"])
    for problem in sets_by_problem:
        splits["train"].pop(problem, None)
        splits["validation"].pop(problem, None)
    wanted = {split: splits[split] for split in source.splits}
    first = wanted[source.splits[0]]  # train, if there is one
    shots = {problem: first.pop(problem) for problem in list(first)[: source.shots]}
    overlaps = Counter(sets_by_problem.values())
    data = Data(wanted, shots, len(problems) + copies, copies, overlaps, absent)
    for split, kept in wanted.items():
        if not kept:
            without = "" if split == "train" else f", or write problems(..., {split}=0)"
            raise UserError(f"{source.name} leaves its {split} split empty ({data.counts}); add problems{without}")
    return data


def split_of(problem: str, shares: dict[str, float]) -> str:
    """Return the split of a problem, which its text alone decides: further rows move no problem to another one."""
    place = int(clean.problem_digest(problem)[: DIGITS // 4], 16) / 2**DIGITS
    if place < shares["test"]:
        return "test"
    return "validation" if place < shares["test"] + shares["validation"] else "train"


def evaluated(problems: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the evaluation sets that have some of the problems, by problem, and the sets that are not here."""
    texts, owners, absent = [], [], []
    for name, entry in SETS.items():
        if "test" not in entry.splits:
            continue
        card = cache.find_card(name)
        if card is None or "test" not in card["problems"]:
            absent.append(name)
            continue
        for row in cache.problem_rows(name):
            texts.append(row["problem"])
            owners.append(name)
    candidates = list(problems) if texts else []
    sets_by_problem: dict[str, str] = {}
    for match in overlap.matches(texts, candidates):
        sets_by_problem.setdefault(candidates[match.trained], owners[match.evaluated])
    return sets_by_problem, absent
