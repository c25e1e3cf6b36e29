"""Numbers of papers: the shipped file, their table, and that no estimate contains one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from boards import MadeUpMatrix, show_table

import baselines
import tasks
from harness.base.errors import Damaged, UserError
from harness.table import literature
from harness.table.literature import LITERATURE, SCORES, read_literature, render_literature

NUMBERS = read_literature(LITERATURE)
HEADER = LITERATURE.read_text().splitlines()[0]
# A number that no mean of the made-up matrix can miss.
INVENTED = f"{HEADER}\nppo,Their PPO,Their-7B,countdown,avg,32,99.9,GRPO,98.7,2601.00001,Table 9,2026-01,\n"


# The file


def test_numbers_of_the_shipped_file() -> None:
    assert len(NUMBERS) > 50
    rows = set()
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


def test_read_literature_in_an_installed_package(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="part of the repository and not of an installed package"):
        read_literature(tmp_path / "reported.csv")


# The table


def test_render_literature() -> None:
    text = render_literature({"aime25"}, "md", None)
    title, _, heading, _, *rows = text.strip().splitlines()
    assert title == "**Reported in papers, not measured here, and not part of any mean above**"
    assert heading.startswith("| method | mark | base model | task | score | % | baseline |")
    assert len(rows) == sum(number.task == "aime25" for number in NUMBERS)
    assert all(row.split(" | ")[1] == "reported" for row in rows)
    clip_v = "| GRPO + Clip\\_V" if "Clip\\_V" in text else "| GRPO + Clip_V"
    [row] = [row for row in rows if row.startswith(clip_v)]
    assert "| Qwen2.5-14B-Instruct | aime25 | Avg@32 | 21.4 | GRPO | 17.6 | arXiv 2606.19236, Table 2, copied" in row


def test_render_literature_without_numbers() -> None:
    assert render_literature({"countdown", "rg"}, "table", 80) == (
        "No number in results/literature is about countdown or rg.\n"
    )


@pytest.mark.parametrize("options", [["--compare"], ["--format", "csv"], ["--format", "json"]])
def test_literature_only_below_tables_of_scores(options: list[str]) -> None:
    words = "--literature goes below the table of scores, in --format table or md"
    assert words in show_table("demo", "--literature", *options)


# No mean contains it


@pytest.mark.slow
def test_literature_changes_no_number(
    tmp_path: Path, sent_matrix: MadeUpMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected = ["--experiment", "made", "--uri", sent_matrix.config.tracking_uri]
    forms = [["--format", how] for how in ("table", "md", "csv", "json", "latex")] + [["--compare", "--format", "json"]]
    before = [show_table(*selected, *form) for form in forms]
    sentence = "\nNo number in results/literature is about countdown.\n"
    assert show_table(*selected, "--literature") == before[0] + sentence

    path = tmp_path / "reported.csv"
    path.write_text(INVENTED)
    monkeypatch.setattr(literature, "LITERATURE", path)
    assert [show_table(*selected, *form) for form in forms] == before
    for how, text in zip(("table", "md"), before, strict=False):
        whole = show_table(*selected, "--format", how, "--literature")
        assert whole.startswith(f"{text}\n")
        below = whole.removeprefix(text)
        assert "99.9" in below
        assert "99.9" not in text
        assert "reported" in below
