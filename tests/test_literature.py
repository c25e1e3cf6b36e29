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


def test_numbers_of_the_shipped_file() -> None:
    assert len(NUMBERS) > 50
    rows: set[tuple[object, ...]] = set()
    baselines_of_sources: dict[tuple[object, ...], float] = {}
    for number in NUMBERS:
        assert number.method in baselines.METHODS
        assert number.task in tasks.TASKS
        assert re.fullmatch(r"\d{4}\.\d{5}", number.arxiv)
        assert number.published == f"20{number.arxiv[:2]}-{number.arxiv[2:4]}"
        assert number.score in SCORES
        assert number.k > 1
        assert 0 < number.value < 100
        assert 0 < number.baseline_value < 100
        place = (number.base_model, number.task, number.score, number.k, number.arxiv)
        assert (number.name, *place) not in rows, "each row is there once"
        rows.add((number.name, *place))
        known = baselines_of_sources.setdefault((number.baseline, *place), number.baseline_value)
        assert known == number.baseline_value, "a source has one number of a baseline"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("method,value\ngrpo,1\n", "its columns must be method, name, base_model"),
        (INVENTED.replace("99.9", "high"), "k, value and baseline_value must be numbers"),
        (INVENTED.replace("avg", "mean"), "score is 'mean'; allowed: avg, pass"),
    ],
)
def test_read_literature_refuses_a_damaged_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "reported.csv"
    path.write_text(content)
    with pytest.raises(Damaged, match=message):
        read_literature(path)


def test_literature_is_read_by_one_study() -> None:
    readers = set()
    for top in ("harness", "entrobench", "baselines", "tasks", "studies"):
        for path in (REPOSITORY / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module == "studies.transfer.literature":
                    readers.add(str(path.relative_to(REPOSITORY)))
    assert readers == {"studies/transfer/analysis.py"}
