"""The pages of the studies say what their results hold, kept results agree, and a study's own functions are right."""

from __future__ import annotations

import ast
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import REPOSITORY
from scipy.stats import kendalltau, nct, t

import baselines
import tasks
from harness import config
from harness.base.errors import Damaged
from harness.table.verdict import significance, verdict
from studies import checks, pages
from studies.demo import power
from studies.field import analysis as field
from studies.field import other_base
from studies.transfer.literature import LITERATURE, SCORES, read_literature


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


# The files of results/reference agree with one another, and with the transcript of the tutorial

FOLDERS = ("demo", "demo-avx2", "demo-tuned", "coloring")
BASELINES = ("grpo", "grpo(lr=3.5e-4)")


def with_interval(estimate: dict[str, float] | None, sign: str = "") -> str:
    """Return an estimate as the leaderboard shows it."""
    if estimate is None:
        return ""
    average, low, high = estimate["mean"], estimate["low"], estimate["high"]
    if low is None:
        return f"{average:{sign}.3f}"
    is_symmetric = high - average == pytest.approx(average - low)
    limits = f"±{high - average:.3f}" if is_symmetric else f"[{low:.3f}, {high:.3f}]"
    mark = ""
    if sign and low > 0:
        mark = " ▲"
    if sign and high < 0:
        mark = " ▼"
    return f"{average:{sign}.3f} {limits}{mark}"


def expected_row(row: dict[str, Any]) -> list[str]:
    """Return the cells of the leaderboard for one method."""
    differences = [with_interval(row["delta_to_baseline"], "+"), with_interval(row["delta_pass_at_k"]["16"], "+")]
    if row["method"] in BASELINES:
        differences = ["baseline", "baseline"]
    if "verdict" in row:  # tables that were made before have no such column
        differences.append(row["verdict"])
    scores = [with_interval(row["avg_at_k"]), with_interval(row["pass_at_k"]["16"])]
    others = [with_interval(row[key]) for key in ("right_distinct", "entropy_initial", "entropy_final")]
    return [row["method"], *scores, *differences, *others, f"{row['seeds_done']} of {row['seeds_expected']}"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_leaderboard_md_and_json_agree(folder: str) -> None:
    rows = json.loads((pages.REFERENCE / folder / "leaderboard.json").read_text())
    assert pages.reference_table(folder).to_numpy().tolist() == [expected_row(row) for row in rows]


@pytest.mark.parametrize("path", sorted(pages.REFERENCE.glob("*/compare.json")), ids=lambda path: path.parent.name)
def test_verdicts_follow_from_p_values(path: Path) -> None:
    by_row: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in json.loads(path.read_text()):
        by_row.setdefault((row["task"], row["model"], row["setting"], row["method"]), []).append(row)
    for average, headline in by_row.values():
        signs = []
        for row in (headline, average):
            assert (row is average) == (row["score"] == "Avg@K")
            signs.append(significance(row["difference"]["mean"], row["p_holm"]) if row["difference"] else 0)
        assert average["verdict"] == headline["verdict"] == verdict(*signs)


def test_transcript_of_the_tutorial_is_the_kept_output() -> None:
    tutorial = (REPOSITORY / "docs/tutorial.md").read_text()
    [shown] = re.findall(r"^```text\n(.*?)^```", tutorial, re.MULTILINE | re.DOTALL)
    seen = (pages.REFERENCE / "smoke/output.txt").read_text().split("\n\n", 1)[1]
    without_progress = re.sub(r"^\d+ of \d+ cells done, .*\n", "", seen, flags=re.MULTILINE)
    numbers = [re.findall(r"[+±-]?\d+(?:[.,]\d+)*|[▲▼]", text) for text in (shown, without_progress)]
    assert len(numbers[0]) > 20
    assert numbers[1][: len(numbers[0])] == numbers[0]


# The power of the demo's designs: estimates against brute force, the simulation against a closed form


def test_components_equal_the_products_of_differences_between_seeds_and_problems() -> None:
    x_CSJ = np.random.default_rng(0).normal(size=(2, 3, 4)) * [[[1.0]], [[2.0]]] + np.arange(3)[:, None]
    of_seeds, of_problems, of_residuals = [], [], []
    for (s, r), (j, i) in itertools.product(itertools.permutations(range(3), 2), itertools.permutations(range(4), 2)):
        seed_j, seed_i = x_CSJ[:, s, j] - x_CSJ[:, r, j], x_CSJ[:, s, i] - x_CSJ[:, r, i]
        problem_s, problem_r = x_CSJ[:, s, j] - x_CSJ[:, s, i], x_CSJ[:, r, j] - x_CSJ[:, r, i]
        of_seeds.append(np.outer(seed_j, seed_i) / 2)
        of_problems.append(np.outer(problem_s, problem_r) / 2)
        of_residuals.append(np.outer(seed_j - seed_i, seed_j - seed_i) / 4)
    found = power.components(x_CSJ)
    assert found["mean"] == pytest.approx(x_CSJ.reshape(2, -1).mean(axis=1))
    assert found["seeds"] == pytest.approx(np.mean(of_seeds, axis=0))
    assert found["problems"] == pytest.approx(np.mean(of_problems, axis=0))
    assert found["residuals"] == pytest.approx(np.mean(of_residuals, axis=0))


def test_power_equals_the_one_of_a_t_test_where_only_seeds_differ() -> None:
    effect = {"mean": [1.0, 0.1], "seeds": np.diag([0.01, 0.0025]), "problems": np.zeros((2, 2))}
    critical = t(4).ppf(1 - 0.05 / 6 / 2)
    exact = nct(4, 0.1 / 0.05 * np.sqrt(5)).sf(critical)
    share = power.power({**effect, "residuals": np.zeros((2, 2))}, seeds=5, problems=3)
    assert share == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / power.EXPERIMENTS))


def test_is_win_with_a_loss_in_avg_at_k() -> None:
    noise_SJ = np.random.default_rng(0).normal(0, 0.01, (5, 30))
    for avg, passed, wins in ((0.0, 0.2, True), (0.1, 0.2, True), (-0.1, 0.2, False), (0.0, -0.2, False)):
        assert power.is_win(np.stack([noise_SJ + avg, noise_SJ + passed])) is wins


def test_row_of_the_demo() -> None:
    demo, estimates = config.load_config("demo"), json.loads(power.ESTIMATES.read_text())
    assert demo.eval.problems is not None
    design = (demo.train.steps, len(demo.seeds), demo.eval.problems)
    assert power.row(estimates, *design) in power.TABLE.read_text().splitlines()
    assert power.minutes_of(*power.BEFORE) == pytest.approx(power.BEFORE_MINUTES)
    assert not {seed for effect in estimates.values() for seed in effect["of"]} & {*demo.seeds}


# Numbers of papers, of which the product reads none

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
