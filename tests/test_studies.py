"""The pages of the studies say what their results hold, and a study's own functions equal plain ones."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from places import REPOSITORY
from scipy.stats import kendalltau

from studies import checks, pages
from studies.field import analysis as field
from studies.field import other_base


@pytest.mark.parametrize("study", pages.STUDIES)
def test_check_of_a_study(study: str) -> None:
    checks.check(study)


OTHER_PAGES = sorted({*(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "studies/README.md"} - {*pages.PAGES})


@pytest.mark.parametrize("page", OTHER_PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_verdicts_of_other_pages(page: Path) -> None:
    checks.check_verdicts(page)


@pytest.mark.parametrize("study", pages.STUDIES)
def test_check_refuses_another_figure(study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a filled table, the first figure with decimals of each page."""
    for page in checks.pages_of(study):
        text = page.read_text()
        place = re.search(r"<!-- table: .*?^\|.*?\d\.\d+(\d)", text, re.MULTILINE | re.DOTALL)
        assert place
        other = tmp_path / page.name
        other.write_text(f"{text[: place.start(1)]}{(int(place[1]) + 1) % 10}{text[place.end(1) :]}")
        monkeypatch.setattr(checks, "pages_of", lambda _, other=other: [other])
        with pytest.raises(AssertionError, match=page.name):
            checks.check(study)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("**9.999**<!-- demo/grpo/Avg@K -->", "**0.276**<!-- demo/grpo/Avg@K -->"),
        ("9.9\n  ±9.9<!-- demo/grpo/Avg@K -->", "0.276\n  ±0.044<!-- demo/grpo/Avg@K -->"),
        ("9.9 ±9.9<!-- demo/grpo/entropy, end -->", "0.157 [0.143, 0.173]<!-- demo/grpo/entropy, end -->"),
        ("-9.9 ±9.9<!-- demo/clip_b/Pass@16 - grpo -->", "+0.152 ±0.057<!-- demo/clip_b/Pass@16 - grpo -->"),
        (
            "9.9 [9.9,\n9.9]<!-- field/field-coloring/tau of Pass@16 -->",
            "0.48 [0.30,\n0.64]<!-- field/field-coloring/tau of Pass@16 -->",
        ),
    ],
)
def test_fill_keeps_breaks_and_whether_an_interval_is_shown(before: str, after: str) -> None:
    assert pages.fill(f"{before} rest") == f"{after} rest"


def test_states_refuses_another_figure(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("It gains **0.12<!-- a mark -->\nin Pass@16**.\n\n| 0.34 |\n")
    page = checks.Page(str(tmp_path / "page.md"))
    page.states("It gains 0.12 in Pass@16.")
    for phrase in ("gains 0.13", "0.34"):
        with pytest.raises(AssertionError, match=f"does not say: {phrase}"):
            page.states(phrase)


def test_check_verdicts_refuses_one_without_its_mark_or_another(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for text in ("Clip_B wins.", "Clip_B trades<!-- demo/clip_b/verdict -->."):
        page.write_text(text)
        with pytest.raises(AssertionError, match=page.name):
            checks.check_verdicts(page)


@pytest.mark.parametrize(("second", "changed"), [((0.2, 0.0, 0.4), False), ((0.5, 0.3, 0.7), True)])
def test_within_noise_by_both_intervals(second: tuple[float, float, float], changed: bool) -> None:
    first = {"mean": 0.1, "low": -0.1, "high": 0.3}  # the interval of the change is 0.2 times the root of 2
    other = dict(zip(("mean", "low", "high"), second, strict=True))
    assert other_base.within_noise(first, other) is not changed
    exact = {"mean": 0.0, "low": None, "high": None}
    assert other_base.within_noise(exact, exact)


def test_tau_with_interval_equals_plain_resampling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field, "RESAMPLES", 200)
    first, second = [0.1, 0.3, 0.3, -0.2, 0.0, 0.4, 0.1], [0.2, 0.1, 0.5, -0.1, 0.0, 0.3, 0.2]
    pairs, generator = np.array([first, second]), np.random.default_rng(0)
    resampled = [kendalltau(*pairs[:, chosen]).statistic for chosen in generator.integers(7, size=(200, 7))]
    expected = [kendalltau(first, second).statistic, *np.nanpercentile(resampled, [2.5, 97.5])]
    assert field.tau_with_interval(first, second) == pytest.approx(expected, abs=1e-12)
