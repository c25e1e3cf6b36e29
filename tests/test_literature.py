"""Numbers of papers: the shipped file, and that the product reads none of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from places import REPOSITORY

import baselines
import tasks
from harness.base.errors import Damaged
from studies.transfer.literature import LITERATURE, SCORES, read_literature

NUMBERS = read_literature(LITERATURE)
HEADER = LITERATURE.read_text().splitlines()[0]
INVENTED = f"{HEADER}\nppo,Their PPO,Their-7B,countdown,avg,32,99.9,GRPO,98.7,2601.00001,Table 9,2026-01,\n"


def test_methods_and_tasks_are_those_of_the_repository() -> None:
    assert len(NUMBERS) > 50
    assert {number.method for number in NUMBERS} <= baselines.METHODS.keys()
    assert {number.task for number in NUMBERS} <= tasks.TASKS.keys()


def test_sources_dates_and_numbers_are_possible() -> None:
    for number in NUMBERS:
        assert re.fullmatch(r"\d{4}\.\d{5}", number.arxiv)
        year, month = number.arxiv[:2], number.arxiv[2:4]
        assert number.published == f"20{year}-{month}"
        assert number.score in SCORES
        assert number.k > 1
        assert 0 < number.value < 100
        assert 0 < number.baseline_value < 100


def test_no_row_is_there_twice() -> None:
    keys = [(n.name, n.base_model, n.task, n.score, n.k, n.arxiv) for n in NUMBERS]
    assert len(keys) == len(set(keys))


def test_one_source_has_one_number_of_a_baseline() -> None:
    values: dict[tuple[str, ...], set[float]] = {}
    for n in NUMBERS:
        values.setdefault((n.baseline, n.base_model, n.task, n.score, str(n.k), n.arxiv), set()).add(n.baseline_value)
    assert all(len(known) == 1 for known in values.values())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("method,value\ngrpo,1\n", "its columns must be method, name, base_model"),
        (INVENTED.replace("99.9", "high"), "k, value and baseline_value must be numbers"),
        (INVENTED.replace("avg", "mean"), "score is 'mean'; allowed: avg, pass"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "reported.csv"
    path.write_text(content)
    with pytest.raises(Damaged, match=message):
        read_literature(path)


def test_only_the_comparison_with_papers_reads_it() -> None:
    readers = set()
    for top in ("harness", "entrobench", "baselines", "tasks", "studies"):
        for path in (REPOSITORY / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module == "studies.transfer.literature":
                    readers.add(str(path.relative_to(REPOSITORY)))
    assert readers == {"studies/transfer/analysis.py"}
