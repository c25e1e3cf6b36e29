"""Whether the pages of the studies say what results/reference holds.

    python -m studies.checks                # every study
    python -m studies.checks field dial     # some

Tables, marked figures and marked verdicts (`studies.pages`) are checked on every page of a study. What a page says
besides is checked by the functions `check_...` of the module `check` in the study's folder, where it has one: they
compute a figure from the kept results, and `Page.states` finds the words with this figure on the page.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Collection
from itertools import combinations
from pathlib import Path

from harness import config
from studies import pages
from studies.field import analysis as field
from studies.field import tuned as field_tuned

WORDS = (
    *("no", "one", "two", "three", "four", "five", "six", "seven"),
    *("eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen"),
)

Estimate = tuple[float, float, float]  # mean, and the limits of its interval


class Page:
    """A page whose words are compared with figures; it is read anew each time."""

    def __init__(self, name: str):
        self.path = pages.REPOSITORY / name

    def states(self, *phrases: str) -> None:
        """Refuse a page that lacks one of the phrases; its marks, bold letters and line breaks do not count."""
        words = re.sub(r"<!--.*?-->|\*\*", "", prose(self.path.read_text()))
        for phrase in phrases:
            assert phrase in words, f"{self.path.name} does not say: {phrase}"


def prose(text: str) -> str:
    """Return the text on one line, without tables, pictures and code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "![", "    "))]
    return " ".join(" ".join(lines).split())


def section(text: str, title: str) -> str:
    """Return the text under a heading of the second level."""
    return re.split(r"^## ", text.split(f"\n## {title}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def estimate(shown: str) -> Estimate:
    """Return the mean and the limits of an estimate that a table shows."""
    mean, *interval = map(float, re.findall(r"[+-]?\d+\.?\d*", shown))
    low, high = interval if len(interval) == 2 else (mean - interval[0], mean + interval[0])
    return mean, low, high


def column(folder: str, name: str) -> dict[str, Estimate]:
    """Return the estimates in one column of a leaderboard by its rows, without those that have none."""
    shown = pages.reference_table(folder)[name]
    return {row: estimate(text) for row, text in shown.items() if text not in ("", "baseline")}


def apart(first: Estimate, second: Estimate) -> bool:
    """Return whether two intervals do not overlap."""
    return first[2] < second[1] or second[2] < first[1]


def any_apart(estimates: Collection[Estimate]) -> bool:
    """Return whether two of these intervals do not overlap."""
    return any(apart(*pair) for pair in combinations(estimates, 2))


def compare_choice(matrix: str, candidates: int) -> None:
    """Refuse a tuned matrix whose rows are not those that tuning chose from the candidates of its configuration."""
    choice = field_tuned.choice(matrix)
    shown = [name for name in pages.reference_table(matrix)["method"] if name != field.BASE_MODEL]
    assert [*choice["methods"].values()] == shown
    assert choice["candidates"] == config.tuning_rules(field.loaded(matrix))["candidates"]
    assert sum(map(len, choice["candidates"].values())) == candidates


def check_verdicts(page: Path) -> dict[str, set[str]]:
    """Refuse a page with a verdict that is not the one of the results, or without its mark; return whom marks name."""
    text = page.read_text()
    named: dict[str, set[str]] = {}
    for word, folder, listed in pages.VERDICT.findall(text):
        decided, methods = pages.verdicts(folder), set(listed.split(", ")) - {"none"}
        assert {decided[method] for method in methods} <= {f"{word}s"}, (page.name, folder, listed)
        named.setdefault(folder, set()).update(methods)
    unmarked = pages.CLAIM.findall(prose(text))
    assert not unmarked, f"{page.name}: write the place in a table after these, or italics if they name the rule"
    return named


def pages_of(study: str) -> list[Path]:
    """Return the pages that show the results of a study."""
    elsewhere = pages.ELSEWHERE.get(study, ())
    return [page for page in pages.PAGES if page.parent.name == study or page in elsewhere]


def check(study: str) -> None:
    """Refuse the first thing that the pages of a study say against its results."""
    named: dict[str, set[str]] = {}
    for page in pages_of(study):
        text = page.read_text()
        assert pages.TABLE.search(text), f"{page.name} has lost its tables"
        unread = pages.MARK.findall(pages.FIGURE.sub("", pages.VERDICT.sub("", text)))
        assert not unread, f"{page.name}: no verdict, nor a figure with decimals, is right before {unread}"
        assert text == pages.fill(text), f"{page.name}: look at what `python -m studies.pages` changes"
        for folder, methods in check_verdicts(page).items():
            named.setdefault(folder, set()).update(methods)
    for folder, methods in named.items():
        deciding = {method for method, found in pages.verdicts(folder).items() if found in ("wins", "trades")}
        assert deciding <= methods, f"{folder}: the pages name some of the methods that win or trade, and not all"
    if (pages.FOLDERS / study / "check.py").exists():
        for name, function in vars(importlib.import_module(f"studies.{study}.check")).items():
            if name.startswith("check_"):
                function()


def main(*studies: str) -> None:
    for study in studies or pages.STUDIES:
        check(study)
        print(f"{study}: the pages say what the results hold")


if __name__ == "__main__":
    main(*sys.argv[1:])
