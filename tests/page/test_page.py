"""The page shows the records of the cells as MLflow has them, and nothing else."""

from __future__ import annotations

import dataclasses
import html
import itertools
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import scipy.stats
from frames import leaderboard_row
from intervals import limits
from matrices import (
    HOSTILE,
    HOSTILE_TEXT,
    PROBLEMS,
    STEPS,
    metrics_of,
    right_of,
    send_matrix,
    specs,
    summarize,
    values,
    write_done,
    write_failed,
)
from pandas.testing import assert_frame_equal

from harness import config as configs
from harness.base.errors import Damaged, UserError
from harness.base.terminal import visible
from harness.config import Config
from harness.matrix import Cell, cells
from harness.page import content, figures, page
from harness.page.content import PageContent, content_of_experiment, page_cells
from harness.page.scores import progress_figures
from harness.table.leaderboard import LeaderboardRow, entropy_kept
from harness.table.publish import publish
from harness.table.statistics import Estimate, mean_interval
from harness.tracking import sync

pytestmark = pytest.mark.slow

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def page_content(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> PageContent:
    return told_of(migrated, tmp_path_factory.mktemp("page_content"))


def told_of(migrated: Path, root: Path, **given: Any) -> PageContent:
    uri = f"sqlite:///{shutil.copy(migrated, root / 'mlflow.db')}"
    send_matrix(root, uri, **given)
    return content_of_experiment(uri, "matrix")


def every_figure(of: PageContent) -> list[figures.Figure]:
    return [figure for section in page.sections_of(of) for _, group in section["groups"] for _, figure in group]


def titled(of: PageContent, title: str) -> figures.Figure:
    [matching] = [figure for figure in every_figure(of) if figure.title == title]
    return matching


# From the records to the story


def published(root: Path, uri: str, *overrides: str) -> tuple[Config, list[Cell]]:
    """Write and send the cells of a configuration of two methods, of which seed 1 of clip_b has failed."""
    given = ["name=matrix", "methods=[grpo,clip_b]", "seeds=[0,1]", "eval.k=2", "eval.samples=4", *overrides]
    config = configs.load_config("smoke", [*given, f"tracking.uri={uri}", f"results={root / 'results'}"])
    matrix = cells(config)
    for cell in matrix:
        if (cell.method, cell.seed) == ("clip_b", 1):
            write_failed(cell.folder, cell.spec, "no memory")
        else:
            write_done(cell.folder, cell.spec, config.methods.index(cell.method))
        (cell.folder / "log.txt").write_text("started\n")
        sync.sync(cell.folder, uri)
    publish(config, matrix)
    return config, matrix


def test_content_of_config_and_of_experiment(tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, matrix = published(Path(), mlflow_uri, "axes={train.lr: [1e-3, 1e-1]}")
    here = content.content_of_config(config, matrix, "entrobench run smoke")
    there = content_of_experiment(mlflow_uri, "matrix")
    assert (here.command, there.command) == ("entrobench run smoke", None)
    for field in ("name", "baseline", "methods", "rows"):
        assert getattr(here, field) == getattr(there, field)
    # A configuration knows the folders of its cells, an experiment alone those of its artifacts.
    assert_frame_equal(here.cells.drop(columns="folder"), there.cells.drop(columns="folder"))
    assert here.cells["folder"].tolist() == [cell.folder for cell in matrix]
    assert_frame_equal(here.curves, there.curves)
    for ours, theirs in zip(here.tables, there.tables, strict=True):
        assert_frame_equal(ours.answers, theirs.answers)
    assert [table.questions for table in here.tables] == [table.questions for table in there.tables]
    assert [figures.payload(each) for each in every_figure(here)] == [
        figures.payload(each) for each in every_figure(there)
    ]
    over = titled(here, "Avg@K over train.lr")
    assert values(over, "x") == {"base model": [0.001, 0.1], "grpo": [0.001, 0.1], "clip_b": [0.001, 0.1]}
    assert values(over, "y") == {
        name: [pytest.approx(row.avg_at_k.mean, rel=1e-4) for row in here.rows if row.method == name and row.avg_at_k]
        for name in ("base model", "grpo", "clip_b")
    }
    assert "Avg@K over train.lr" in page.render_page(here)


def test_write_page_links_files(tmp_path: Path, mlflow_uri: str) -> None:
    config, matrix = published(tmp_path, mlflow_uri)
    of_config = content.content_of_config(config, matrix, None)
    of_experiment = content_of_experiment(mlflow_uri, "matrix")
    folders = {(cell.method, cell.seed): cell.folder for cell in matrix}
    names = ["config.yaml", "metrics.jsonl", "log.txt"]
    answers = f"samples/evaluate-countdown-{STEPS:06d}.jsonl"
    in_order = [("grpo", 0), ("grpo", 1), ("clip_b", 0)]
    expected = [folders[key] / name for key in in_order for name in [*names, answers]]
    expected += [folders["clip_b", 1] / name for name in names]
    for of, place in ((of_config, config.folder / "report/report.html"), (of_config, tmp_path / "a page.html")):
        assert linked_files(page.write_page(of, place)) == expected
    artifacts = linked_files(page.write_page(of_experiment, tmp_path / "page.html"))
    assert [path.name for path in artifacts] == [Path(name).name for name in ["config.yaml", answers] * 3 + names[:1]]
    assert outward_links(page.render_page(of_config)) == []


def test_cell_files_of_tasks_with_one_beginning(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    for name in ("aime-000000", "aime-000012", "aime-24-000012"):
        (tmp_path / f"samples/evaluate-{name}.jsonl").touch()
    for task in ("aime", "aime-24"):
        assert page.cell_files(tmp_path, task)["answers"].name == f"evaluate-{task}-000012.jsonl"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-05", 1e-5), ("0.0003", 3e-4), ("-2.5e+20", -2.5e20), ("+0.125 ±0.062", 0.125), ("3 of 5", 3.0), ("e5", None)],
)
def test_table_cell_is_sorted_by_its_number(text: str, value: float | None) -> None:
    assert page.table_cell(text)["value"] == value


def test_run_address() -> None:
    address = "http://server:5000/#/experiments/3/runs/abc/artifacts"
    assert content.run_address("http://server:5000/", "3", "abc") == address
    assert page.cell_links(None, address, "countdown", Path()) == [("run in MLflow", address)]
    for uri in ("http://user:word@server:5000", "http://server:5000?key=1", "sqlite:////tmp/mlflow.db", "a.zip"):
        assert content.run_address(uri, "3", "abc") is None


def outward_links(text: str) -> list[str]:
    addresses = [str(attributes["href"]) for attributes in Elements(text).named("a")]
    return [address for address in addresses if not address.startswith("#")]


def linked_files(path: Path) -> list[Path]:
    """Return the files that a page links to, in the order of its links."""
    files = [path.parent / unquote(address) for address in outward_links(path.read_text())]
    assert all(file.is_file() for file in files)
    return [file.resolve() for file in files]


def test_content_without_changed_answers(tmp_path: Path, mlflow_uri: str) -> None:
    config, matrix = published(tmp_path, mlflow_uri, "seeds=[0]")

    def content_now() -> list[PageContent]:
        return [content.content_of_config(config, matrix, None), content_of_experiment(mlflow_uri, "matrix")]

    assert all(table.questions for each in content_now() for table in each.tables)
    name = f"evaluate-countdown-{STEPS:06d}.jsonl"
    here = matrix[1].folder / "samples" / name
    [there] = [path for path in tmp_path.glob(f"mlartifacts/**/{name}") if path.read_bytes() == here.read_bytes()]
    damaged = Path("clip_b s0/samples", name)  # as the run names it
    there.write_text(there.read_text().replace("answer", "Answer", 1))
    for each in content_now():
        assert [table.questions for table in each.tables] == [[]]
        assert [note for note in each.notes if "left out" in note] == [
            f"Answers are left out: {damaged} is damaged: one of its lines does not fit its sum."
        ]
        assert "does not fit its sum" in page.render_page(each)


def test_content_of_experiment_with_a_planned_cell_and_with_half_an_evaluation(tmp_path: Path, mlflow_uri: str) -> None:
    first, second = specs("matrix", ["grpo", "clip_b"], ["countdown"], ["tiny"], [0])
    write_done(tmp_path / "a", first, 0)
    sync.sync(tmp_path / "a", mlflow_uri)
    summarize(mlflow_uri, [first, second])
    page_content = content_of_experiment(mlflow_uri, "matrix")
    assert page_content.cells[["method", "state"]].values.tolist() == [["grpo", "done"], ["clip_b", "planned"]]
    done = {row.method: row.seeds_done for row in page_content.rows}
    assert done == {"base model": 1, "grpo": 1, "clip_b": 0}
    name = f"countdown-{STEPS:06d}.json"
    [there] = tmp_path.glob(f"mlartifacts/**/evals/{name}")
    there.write_bytes(there.read_bytes()[:100])
    with pytest.raises(Damaged, match=rf"grpo s0/evals/{name} is damaged: it is not JSON"):
        content_of_experiment(mlflow_uri, "matrix")


@pytest.mark.parametrize(("name", "words"), [("matrix", "has no experiment 'matrix'"), ("empty", "holds no table")])
def test_content_of_an_empty_experiment(name: str, words: str, mlflow_uri: str) -> None:
    from mlflow import MlflowClient

    MlflowClient(mlflow_uri).create_experiment("empty")
    with pytest.raises(UserError, match=words):
        content_of_experiment(mlflow_uri, name)


def test_questions(page_content: PageContent) -> None:
    [table] = page_content.tables
    first, *_ = table.questions
    assert (first["problem"], first["seed"]) == ("won", 0)  # one answer of grpo, two of clip_b, as many of all else
    numbers = [(answers["method"], answers["distinct"], answers["total"]) for answers in first["answers"]]
    assert numbers == [(None, 1, 4), ("grpo", 1, 4), ("clip_b", 2, 4)]
    copies = [[(answer["start"], answer["times"]) for answer in of["shown"]] for of in first["answers"]]
    assert copies[1:] == [[("answer 0", 4)], [("answer 0", 2), ("answer 1", 2)]]
    assert [question["problem"] for question in table.questions[1:]] == PROBLEMS[:2]
    assert [answers["right"] for answers in first["answers"]] == [
        sum(right_of(0, 0, 0)[2]),
        *(sum(right_of(m, 0, STEPS)[2]) for m in (0, 1)),
    ]


@pytest.mark.parametrize("length", [299, 300, 301, 1000])
def test_shortened(length: int) -> None:
    text = "".join(chr(97 + i % 26) for i in range(length))
    start, left_out, end = content.shortened(text)
    assert len(start) + left_out + len(end) == length
    assert text.startswith(start)
    assert text.endswith(end)
    assert len(start + end) == min(length, content.LONGEST_ANSWER)


# Figures


@pytest.mark.parametrize(
    ("title", "metric", "is_geometric"),
    [("Entropy over steps", "entropy/mean", True), ("Mean reward", "reward/mean", False)],
)
def test_curve_figures(page_content: PageContent, title: str, metric: str, is_geometric: bool) -> None:
    figure = titled(page_content, title)
    for level, method in enumerate(("grpo", "clip_b")):
        steps = range(1, STEPS + 1)
        each = np.array([[metrics_of(level, seed, step)[metric] for step in steps] for seed in SEEDS])
        averaged = np.log(each) if is_geometric else each
        means, deviations = averaged.mean(axis=0), averaged.std(axis=0, ddof=1)
        half = scipy.stats.t.ppf(0.975, len(SEEDS) - 1) * deviations / np.sqrt(len(SEEDS))
        back = np.exp if is_geometric else np.asarray
        assert values(figure, "x")[method] == list(steps)
        assert values(figure, "y")[method] == pytest.approx(back(means), rel=1e-4)
        if deviations.any():
            assert values(figure, "low")[method] == pytest.approx(back(means - half), rel=1e-4)
            assert values(figure, "high")[method] == pytest.approx(back(means + half), rel=1e-4)
        else:
            assert values(figure, "low")[method] == values(figure, "high")[method] == [None] * STEPS


def test_pass_at_k_figure(page_content: PageContent) -> None:
    figure = titled(page_content, "Pass@k over k")
    for row in page_content.rows:
        assert values(figure, "x")[row.method] == list(row.pass_at_k)
        for key, of in (("y", "mean"), ("low", "low"), ("high", "high")):
            expected = [getattr(estimate, of) for estimate in row.pass_at_k.values()]
            assert values(figure, key)[row.method] == [
                None if each is None else pytest.approx(each, rel=1e-4) for each in expected
            ]


def test_figures_of_scores_over_steps(page_content: PageContent) -> None:
    for name, score_of in (
        ("Avg@K", lambda row: row.avg_at_k),
        ("Pass@2", lambda row: row.pass_at_k[2]),
        ("Distinct right answers", lambda row: row.right_distinct),
    ):
        figure = titled(page_content, f"{name} over steps")
        for row in page_content.rows[1:]:
            estimate = score_of(row)
            assert values(figure, "x")[row.method] == [0, 2, STEPS]
            for key, of in (("y", "mean"), ("low", "low"), ("high", "high")):
                assert values(figure, key)[row.method][-1] == pytest.approx(getattr(estimate, of), rel=1e-4)


def test_scores_over_steps_keep_a_cell_that_ended_early(page_content: PageContent) -> None:
    [table] = page_content.tables
    answers = table.answers
    ended = answers["cell"] == answers[answers["method"] == "clip_b"]["cell"].iloc[0]
    early = dataclasses.replace(table, answers=answers[~ended | (answers["step"] <= 2)])
    for figure in progress_figures(early, ["clip_b"]):
        name = figure.title.removesuffix(" over steps")
        assert values(figure, "x")["clip_b"] == [0, 2, STEPS]
        expected = early.scores.groupby("method")[name].mean()["clip_b"]
        assert values(figure, "y")["clip_b"][-1] == pytest.approx(expected, rel=1e-4)
    ends = answers["step"].isin((0, STEPS)) & ~ended | ended & answers["step"].isin((0, 2))
    assert progress_figures(dataclasses.replace(table, answers=answers[ends]), ["clip_b"]) == []


def test_figure_of_entropy_kept(page_content: PageContent) -> None:
    figure = titled(page_content, "Avg@K against entropy kept")
    ends = [[metrics_of(1, seed, step)["entropy/mean"] for seed in SEEDS] for step in (1, STEPS)]
    mean, low, high = np.exp(limits(mean_interval(np.log(np.array(ends[1]) / np.array(ends[0])))))
    assert values(figure, "x")["clip_b"] == pytest.approx([mean], rel=1e-4)
    assert values(figure, "x_limits")["clip_b"] == {
        "low": pytest.approx([low], rel=1e-4),
        "high": pytest.approx([high], rel=1e-4),
    }


def test_entropy_kept_without_entropy() -> None:
    gone, broken, absent = (2.0, 0.0), (2.0, math.nan), (math.nan, math.nan)
    assert entropy_kept([broken, absent]) is None
    assert entropy_kept([broken, (2.0, 0.5)]) == Estimate(0.25)
    assert entropy_kept([gone, broken]) == entropy_kept([gone, (2.0, 0.5)]) == Estimate(0.0)


def test_figure_of_lost_and_won_problems(page_content: PageContent) -> None:
    figure = titled(page_content, "clip_b: 1 lost, 1 won")
    points = values(figure, "text")
    assert points == {"other problems": ["easy", "never"], "lost": ["lost"], "won": ["won"]}
    before = np.mean([right_of(1, seed, 0) for seed in SEEDS], axis=(0, 2))
    assert values(figure, "x")["lost"] == pytest.approx([before[1]])
    assert values(figure, "y")["won"] == pytest.approx([before[1]])  # by the making of right_of
    assert {line[0]: line[1] for line in figure.lines} == {
        "lost": "1",
        "won": "1",
        "solved less often": "0",
        "solved more often": "0",
        "equally often": "2",
    }


def test_figure_of_time_by_phase(page_content: PageContent) -> None:
    figure = titled(page_content, "Time per phase")
    times = {series["name"]: dict(zip(series["methods"], series["x"], strict=True)) for series in figure.series}
    assert times == {
        "rollout": {"grpo": 1.0, "clip_b": 2.0},
        "update": {"grpo": 2.0, "clip_b": 2.0},
        "evaluate": {"grpo": 0.125, "clip_b": 0.125},
    }


def test_figure_of_seeds(page_content: PageContent) -> None:
    figure = titled(page_content, "Avg@K of each seed")
    expected = [float(np.mean(right_of(1, seed, STEPS))) for seed in SEEDS]
    assert values(figure, "x")["clip_b"] == pytest.approx(expected)
    assert values(figure, "text")["clip_b"] == ["seed 0", "seed 1"]


def test_figures_by_task_and_model(tmp_path: Path, migrated: Path) -> None:
    page_content = told_of(migrated, tmp_path, tasks=["one", "two"], models=["tiny", "small"], seeds=[0])
    titles = {f"{task}, {model}" for task in ("one", "two") for model in ("tiny", "small")}
    assert {table.title for table in page_content.tables} == titles
    for section in page.sections_of(page_content):
        assert {title for title, _ in section["groups"]} == titles, section["title"]
        for _, group in section["groups"]:
            for _, figure in group:
                if figure.kind in ("lines", "points", "dots"):
                    scores = section["id"] in ("finding", "scores") and figure.title != "Avg@K against entropy kept"
                    drawn = ["base model"] * scores + ["grpo", "clip_b"]
                    assert [series["name"] for series in figure.series] == drawn
    [entropy, *_] = [figure for figure in every_figure(page_content) if figure.title == "Entropy over steps"]
    assert values(entropy, "low") == values(entropy, "high")  # one seed, one task, one model: nothing to range over


def row_at(method: str, level: int, **setting: str) -> LeaderboardRow:
    """Return a row whose scores encode its position."""
    avg, passed, kept = (Estimate(0.01 * level + x, 0.01 * level, 0.01 * level + 2 * x) for x in (0.1, 0.2, 0.3))
    own = {key.replace("_", "."): value for key, value in setting.items()}
    return leaderboard_row(method, 2, avg, pass_at_k={1: avg, 2: passed}, entropy_kept=kept, setting=own)


def test_figures_over_axes(page_content: PageContent) -> None:
    grid = itertools.product(("1e-05", "1e-06"), ("2", "16"), ("grpo", "clip_b"))
    rows = [row_at(method, i, train_lr=lr, train_updates=updates) for i, (lr, updates, method) in enumerate(grid)]
    rows[-1] = dataclasses.replace(rows[-1], avg_at_k=None, pass_at_k={}, entropy_kept=None)  # no cell is done
    of = dataclasses.replace(page_content, rows=rows)
    [section] = [each for each in page.sections_of(of) if each["id"] == "axes"]
    names = ("Avg@K", "Pass@2", "Entropy kept")
    expected = {
        f"{axis}: countdown, tiny, {held}": [f"{name} over {axis}, {held}" for name in names]
        for axis, helds in {
            "train.lr": ("train.updates=2", "train.updates=16"),
            "train.updates": ("train.lr=1e-05", "train.lr=1e-06"),
        }.items()
        for held in helds
    }
    assert {title: [figure.title for _, figure in group] for title, group in section["groups"]} == expected

    passed = titled(of, "Pass@2 over train.lr, train.updates=2")
    assert (passed.x, passed.y, passed.options) == (
        "train.lr",
        "Pass@2",
        {"log_x": True, "ticks": [1e-6, 1e-5], "cut": True},
    )
    assert passed.note.endswith("Held fixed: train.updates=2.")
    assert values(passed, "x") == {"grpo": [1e-6, 1e-5], "clip_b": [1e-6, 1e-5]}
    assert values(passed, "y") == {"grpo": [0.24, 0.2], "clip_b": [0.25, 0.21]}
    assert values(passed, "low") == {"grpo": [0.04, 0.0], "clip_b": [0.05, 0.01]}
    assert values(passed, "high") == {"grpo": [0.44, 0.4], "clip_b": [0.45, 0.41]}
    assert passed.header == ["method", "train.lr=1e-06", "train.lr=1e-05"]
    assert passed.lines == [["grpo", "0.240 ±0.200", "0.200 ±0.200"], ["clip_b", "0.250 ±0.200", "0.210 ±0.200"]]

    kept = titled(of, "Entropy kept over train.updates, train.lr=1e-06")
    assert kept.options == {"log_x": False, "ticks": [2.0, 16.0]}
    assert values(kept, "x") == {"grpo": [2.0, 16.0], "clip_b": [2.0]}
    assert values(kept, "y") == {"grpo": [0.34, 0.36], "clip_b": [0.35]}
    assert kept.lines[1] == ["clip_b", "0.350 ±0.300", ""]
    said = page.render_page(of)
    assert 'id="axes"' in said
    name = "Entropy kept over train.updates, train.lr=1e-06, train.updates: countdown, tiny, train.lr=1e-06"
    assert f'aria-label="{name}. train.updates and Entropy kept.' in said


def test_figure_over_an_axis_of_names(page_content: PageContent) -> None:
    rows = [row_at("grpo", i, train_dtype=dtype) for i, dtype in enumerate(("float32", "bfloat16"))]
    figure = titled(dataclasses.replace(page_content, rows=rows), "Avg@K over train.dtype")
    assert figure.options == {"names": True, "cut": True}
    assert values(figure, "x") == {"grpo": ["float32", "bfloat16"]}
    assert [each["id"] for each in page.sections_of(page_content) if each["id"] == "axes"] == [], (
        "without axes there is no section"
    )


def test_figure_without_a_missing_number(page_content: PageContent) -> None:
    curves = page_content.curves.copy()
    of = dataclasses.replace(page_content, curves=curves)
    cells = of.cells.loc[of.cells["method"] == "grpo", "cell"]
    at_step_2 = (curves["metric"] == "reward/mean") & (curves["step"] == 2)
    first, second = curves[at_step_2 & curves["cell"].isin(cells)].index
    curves.loc[first, "value"] = float("nan")
    assert values(titled(of, "Mean reward"), "y")["grpo"] == pytest.approx([0.1, 0.2, 0.3, 0.4])  # of the other seed
    curves.loc[second, "value"] = float("nan")
    assert values(titled(of, "Mean reward"), "x")["grpo"] == [1, 3, 4]
    page.render_page(of)


# The page


class Elements(HTMLParser):
    """Collects what a browser would see: tags with attributes, ids, and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def hostile(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("hostile")
    return page.render_page(told_of(migrated, root, methods=HOSTILE, failed=[(HOSTILE[1], 1)], text=HOSTILE_TEXT))


def drawn_names(text: str) -> set[str]:
    [data] = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    return {series["name"] for figure in json.loads(data).values() for series in figure["series"]}


def test_render_page_says_which_seeds_are_missing(hostile: str) -> None:
    said = f"{2 * len(HOSTILE) - 1} of {2 * len(HOSTILE)} cells are done, 1 failed."
    assert f"{said} Not every expected seed is done for {HOSTILE[1]};" in " ".join(Elements(hostile).text.split())


def test_render_page_of_hostile_names(hostile: str) -> None:
    seen = Elements(hostile)
    assert len(seen.named("script")) == 3  # figures, library, ours
    assert not seen.named("img")
    assert not seen.named("b")
    for name in HOSTILE:
        assert name in seen.text
    assert HOSTILE_TEXT in seen.text
    assert {*HOSTILE} <= drawn_names(hostile)


def test_render_page_without_control_characters(migrated: Path, tmp_path: Path) -> None:
    steering = "a\x1b[31m\u202eb\u2066\u200b\u2028\U000e0041"
    text = page.render_page(told_of(migrated, tmp_path, methods=["grpo", steering], text=steering))
    seen, written = Elements(text), visible(steering)
    assert written in seen.text
    assert {"grpo", written} <= drawn_names(text)
    assert steering not in drawn_names(text)
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)  # all but the library
    assert visible(own) == own


def test_render_page_landmarks_and_ids(hostile: str) -> None:
    seen = Elements(hostile)
    assert seen.named("html") == [{"lang": "en"}]
    for landmark in ("header", "nav", "main", "footer"):
        assert len(seen.named(landmark)) == 1
    ids = [attributes["id"] for _, attributes in seen.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    references = [str(attributes["href"]) for attributes in seen.named("a")]
    references += [f"#{attributes['aria-labelledby']}" for attributes in seen.named("section")]
    assert {reference.removeprefix("#") for reference in references} <= set(ids)
    levels = [int(tag[1]) for tag, _ in seen.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    plots = [attributes for attributes in seen.named("div") if "data-figure" in attributes]
    assert len(plots) > 20
    assert all(attributes["aria-label"] for attributes in plots)


def test_render_page_fetches_nothing(hostile: str) -> None:
    seen = Elements(hostile)
    assert "default-src 'none'" in str(seen.named("meta")[2]["content"])
    assert not [attributes for _, attributes in seen.tags if {"src", "srcset"} & attributes.keys()]
    assert not seen.named("link")


def test_render_page_shows_the_configuration(page_content: PageContent, tmp_path: Path) -> None:
    [shown] = re.findall(r'id="settings">(.*?)</pre>', page.render_page(page_content), re.DOTALL)
    (tmp_path / "again.yaml").write_text(html.unescape(shown))
    assert dataclasses.asdict(configs.load_config(str(tmp_path / "again.yaml"))) == page_content.settings


def test_render_page_of_a_failed_matrix(tmp_path: Path, migrated: Path) -> None:
    of = told_of(migrated, tmp_path, methods=["grpo"], seeds=[0], failed=[("grpo", 0)])
    text = Elements(page.render_page(of)).text
    assert "0 of 1 cells are done, 1 failed." in text
    assert "No cell is done." in text
    assert "out of memory" in text


def test_origin_lines() -> None:
    def cell(version: str) -> dict[str, Any]:
        made = {"version": version, "commit": None, "versions": {"torch": "2.11"}}
        return {"method": "a", "state": "done", "device": "cpu", "made": made, "times": (0.0, 3600.0)}

    assert page.origin_lines(page_cells([cell("1"), cell("1"), cell("2")])) == [
        ("records from", "1970-01-01 00:00 UTC"),
        ("to", "1970-01-01 01:00 UTC"),
        ("device", "cpu"),
        ("version", "1 (2 cells); 2 (1 cell)"),
        ("versions.torch", "2.11"),
    ]


# The command


def test_write_experiment_report(tmp_path: Path, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    send_matrix(tmp_path / "cells", mlflow_uri, name="two words/here")
    given = tmp_path / "new/page.html"
    for out, path in ((None, Path("report-two_words_here.html")), (given, given)):
        assert page.write_experiment_report("two words/here", mlflow_uri, out) == path
        assert "<h1>two words/here</h1>" in path.read_text()
        assert "clip_b" in drawn_names(path.read_text())
