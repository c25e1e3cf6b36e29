import csv
import dataclasses
import io
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cells import Answers, make_spec, write_cell
from frames import leaderboard_row, made_up_frames
from intervals import slow_difference_interval, slow_share_interval
from known import known

from harness.base.errors import UserError
from harness.table import columns, render
from harness.table.board import Expected, Experiment
from harness.table.frames import read_frames
from harness.table.leaderboard import LeaderboardRow, leaderboard_rows
from harness.table.statistics import Estimate
from harness.tracking import reader, store, sync

pytestmark = pytest.mark.slow


PROBLEMS = [f"p{i}" for i in range(6)]


class Matrix:
    """Cells with made-up results, fed to MLflow as `sync` does it."""

    def __init__(self, root: Path, uri: str) -> None:
        self.root, self.uri = root, uri
        self.expected: list[Expected] = []

    def add(
        self,
        method: str,
        seed: int,
        right: dict[str, np.ndarray] | None,
        *,
        entropy: tuple[float, ...] = (2.0, 1.0),
        problems: list[str] = PROBLEMS,
        trained_on: str = "countdown",
        listed: bool = True,
        state: str = "done",
        flags: dict[str, list[str]] | None = None,
    ) -> None:
        """A cell; `right` of each evaluation task, None for one that has not started."""
        cell = f"{method}-{seed}-{trained_on}-{listed}".encode().hex()
        if listed:
            self.expected.append(Expected(method, trained_on, list(right or ["countdown"]), "tiny", seed, cell))
        if right is None:
            return
        folder = self.root / cell
        spec = make_spec(method, seed, trained_on, id=cell)
        steps = [{"eval/avg": 0.0}, *({"entropy/mean": value} for value in entropy)]
        evaluations = []
        for task, right_JN in right.items():
            noted = (flags or {}).get(task, [])
            # An earlier evaluation, which must not count.
            for step, matrix in ((0, 1 - right_JN), (len(entropy), right_JN)):
                evaluations.append(Answers(step, matrix.tolist(), task, problems, flags=noted))
        write_cell(folder, spec, state, steps, evaluations)
        sync.sync(folder, self.uri)

    def rows(self, **ks: int) -> list[LeaderboardRow]:
        """Return the rows with a K of 4, or that of a task in `ks`."""
        of_tasks = {task: 4 for each in self.expected for task in each.eval_tasks} | ks
        with reader.reader(self.uri) as source:
            frames = read_frames(Experiment(source, "demo", self.uri), self.expected, "grpo")
        return leaderboard_rows(frames, "grpo", of_tasks)


@pytest.fixture
def matrix(tmp_path: Path, mlflow_uri: str) -> Matrix:
    return Matrix(tmp_path, mlflow_uri)


def draw(seed: int, share: float, shape: tuple[int, int] = (6, 6)) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) < share).astype(int)


def slow_pass_at_k(right_N: np.ndarray, k: int) -> float:
    return float(np.mean([max(subset) for subset in itertools.combinations(right_N.tolist(), k)]))


def slow_geometric_interval(values: list[float]) -> tuple[float, float, float]:
    """Three values: their geometric mean, and the factor that it may be off by."""
    mean = math.prod(values) ** (1 / 3)
    deviation = math.sqrt(sum(math.log(value / mean) ** 2 for value in values) / 2)
    factor = math.exp(4.302652729911275 * deviation / math.sqrt(3))
    return mean, mean / factor, mean * factor


def as_tuple(estimate: Estimate | None) -> tuple[float | None, ...]:
    return dataclasses.astuple(known(estimate))


def test_leaderboard_rows_by_hand(matrix: Matrix) -> None:
    right = {
        m: [draw(10 * i + s, share) for s in range(3)] for i, (m, share) in enumerate([("grpo", 0.3), ("clip_b", 0.6)])
    }
    for seed in range(3):
        for method in right:
            ends = (2.0, 7.0, 1.0 + seed / 4) if method == "grpo" else (2.5 + seed, 3.0, 2.0)
            matrix.add(method, seed, {"countdown": right[method][seed]}, entropy=ends)
    _, grpo, clip = matrix.rows()
    assert [(r.method, r.task, r.model, r.k, r.baseline) for r in (grpo, clip)] == [
        ("grpo", "countdown", "tiny", 4, "grpo"),
        ("clip_b", "countdown", "tiny", 4, "grpo"),
    ]
    avg = {m: np.array([x.mean(axis=1) for x in xs]) for m, xs in right.items()}
    assert as_tuple(clip.avg_at_k) == pytest.approx(slow_share_interval(avg["clip_b"]), abs=1e-9)
    assert list(clip.pass_at_k) == [1, 2, 4]
    difference = slow_difference_interval(avg["clip_b"] - avg["grpo"])
    assert as_tuple(clip.delta_to_baseline) == pytest.approx(difference, abs=1e-9)
    for k in (1, 2, 4):
        at_k = {m: np.array([[slow_pass_at_k(x_N, k) for x_N in x] for x in xs]) for m, xs in right.items()}
        assert as_tuple(clip.pass_at_k[k]) == pytest.approx(slow_share_interval(at_k["clip_b"]), abs=1e-9)
        difference = slow_difference_interval(at_k["clip_b"] - at_k["grpo"])
        assert as_tuple(clip.delta_pass_at_k[k]) == pytest.approx(difference, abs=1e-9)
    assert as_tuple(clip.entropy_initial) == pytest.approx(slow_geometric_interval([2.5, 3.5, 4.5]))
    assert as_tuple(grpo.entropy_final) == pytest.approx(slow_geometric_interval([1.0, 1.25, 1.5]))
    assert as_tuple(clip.entropy_final) == (2.0, None, None)
    assert as_tuple(grpo.delta_to_baseline) == (0.0, None, None)
    assert (clip.seeds_done, clip.seeds_expected) == (3, 3)


def test_leaderboard_rows_count_expected_done_cells(matrix: Matrix) -> None:
    right = {"countdown": draw(0, 0.5)}
    matrix.add("grpo", 0, right)
    matrix.add("grpo", 1, {"countdown": 1 - right["countdown"]}, state="failed")
    matrix.add("grpo", 2, {"countdown": 1 - right["countdown"]}, state="running")
    matrix.add("grpo", 3, {"countdown": 1 - right["countdown"]}, listed=False)  # of an earlier configuration
    matrix.add("clip_b", 0, None)
    _, grpo, clip = matrix.rows()
    assert (grpo.seeds_done, grpo.seeds_expected) == (1, 3)
    assert as_tuple(grpo.avg_at_k) == (pytest.approx(right["countdown"].mean()), None, None)
    assert (clip.seeds_done, clip.seeds_expected) == (0, 1)
    assert (clip.avg_at_k, clip.pass_at_k, clip.delta_to_baseline, clip.entropy_final) == (None, {}, None, None)


def test_leaderboard_rows_by_task_and_training(matrix: Matrix) -> None:
    for trained_on, share in (("easy", 0.2), ("hard", 0.8)):
        right = {"aime": draw(1, share), trained_on: draw(2, share)}
        matrix.add("grpo", 0, right, trained_on=trained_on)
    means = {row.task: as_tuple(row.avg_at_k)[0] for row in matrix.rows()}
    assert means == {
        "aime (trained on easy)": pytest.approx(draw(1, 0.2).mean()),
        "easy": pytest.approx(draw(2, 0.2).mean()),
        "aime (trained on hard)": pytest.approx(draw(1, 0.8).mean()),
        "hard": pytest.approx(draw(2, 0.8).mean()),
    }


def test_flags_are_footnotes_of_their_task(matrix: Matrix) -> None:
    right = {"aime": draw(1, 0.5), "amc": draw(2, 0.5)}
    matrix.add("grpo", 0, right, flags={"amc": ["contaminated: 3 of 6"]})
    matrix.add("clip_b", 0, right)  # as runs of earlier versions are
    board = matrix.rows()
    assert {(row.method, row.task): row.flags for row in board if row.flags} == {
        ("base model", "amc"): ["contaminated: 3 of 6"],
        ("grpo", "amc"): ["contaminated: 3 of 6"],
    }
    for how in ("md", "table"):
        lines = render.render_rows(board, how).splitlines()
        assert sum("†" in line for line in lines) == 2
        assert any(line.strip("* ") == "amc, tiny †" for line in lines)
        assert lines[-1].removeprefix("- ") == "† amc: contaminated: 3 of 6"
    assert [each["flags"] for each in json.loads(render.as_json(board))].count([]) == 4
    lines_of_csv = csv.DictReader(io.StringIO(render.as_csv(board)))
    assert sorted(line["flags"] for line in lines_of_csv) == ["", "", "", "", *["contaminated: 3 of 6"] * 2]


def test_reader_reads_in_pages(matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(5):
        matrix.add("grpo", seed, {"countdown": draw(seed, 0.5)})
    with reader.reader(matrix.uri) as direct, store.store(matrix.uri, write=False) as client:
        (experiment,) = (number for name, number in direct.experiments().items() if name == "demo")
        whole = direct.runs(experiment)
        assert len(whole) == 5
        monkeypatch.setattr(reader, "PAGE", 2)
        paged = reader.ClientReader(client)
        assert (paged.runs(experiment), paged.experiments()) == (whole, direct.experiments())
        assert paged.texts(whole, "outcome.json") == direct.texts(whole, "outcome.json")
        assert paged.texts(whole, "none.json") == direct.texts(whole, "none.json") == [None] * 5


def test_leaderboard_rows_refuse_other_problems(matrix: Matrix) -> None:
    matrix.add("grpo", 0, {"countdown": draw(0, 0.5)})
    matrix.add("clip_b", 0, {"countdown": draw(0, 0.5)}, problems=PROBLEMS[::-1])
    sentence = r"clip_b seed 0 was not evaluated on the same problems .* as grpo seed 0: .*'p5'.*'p0'"
    with pytest.raises(UserError, match=sentence):
        matrix.rows()


def test_leaderboard_rows_with_a_k_by_task(matrix: Matrix) -> None:
    for method in ("grpo", "clip_b"):
        matrix.add(method, 0, {"countdown": draw(0, 0.5), "other": draw(1, 0.5, (6, 8))})
    board = matrix.rows(other=7)
    of_tasks = sorted((row.task, row.k, list(row.pass_at_k)) for row in board)
    assert of_tasks == [("countdown", 4, [1, 2, 4])] * 3 + [("other", 7, [1, 2, 4, 7, 8])] * 3
    header, *body = columns.table_lines(board)
    assert header[:5] == ["method", "task", "k", "Avg@K", "Pass@k"]
    assert sorted(line[1:3] for line in body) == [["countdown", "4"]] * 3 + [["other", "7"]] * 3
    titles = [line for line in render.render_rows(board, "md").splitlines() if line.startswith("**")]
    assert titles == ["**countdown, tiny**", "**other, tiny**"]
    assert "Pass@7" in columns.table_lines([row for row in board if row.task == "other"])[0]


def test_leaderboard_rows_refuse_other_evaluations(matrix: Matrix) -> None:
    matrix.add("grpo", 0, {"countdown": draw(0, 0.5)})
    matrix.add("grpo", 1, {"countdown": draw(0, 0.5, (6, 8))})
    with pytest.raises(UserError, match=r"6 problems x 8 samples .* and 6 problems x 6 samples"):
        matrix.rows()
    matrix.expected = [dataclasses.replace(matrix.expected[0], eval_tasks=["countdown", "aime"])]
    with pytest.raises(UserError, match="has no evaluation of 'aime' among its artifacts"):
        matrix.rows()


# Showing


def estimate(mean: float, half: float | None = None) -> Estimate:
    return Estimate(mean) if half is None else Estimate(mean, mean - half, mean + half)


def make_row(method: str, avg: float, delta: Estimate, **changes: Any) -> LeaderboardRow:
    passed = {1: estimate(avg, 0.01), 16: estimate(avg + 0.25, 0.02)}
    numbers = {"pass_at_k": passed, "delta_to_baseline": delta, "delta_pass_at_k": {1: delta, 16: delta}}
    entropies = {"entropy_initial": estimate(2.0, 0.125), "entropy_final": estimate(0.5)}
    return leaderboard_row(method, 16, estimate(avg, 0.01), **{**numbers, **entropies, **changes})


BOARD = [
    make_row("grpo", 0.5, estimate(0.0)),
    make_row("b[bold]", 0.625, estimate(0.125, 0.0625)),
    make_row("clip_v", 0.25, estimate(-0.25, 0.125)),
    make_row("ppo", 0.375, estimate(-0.125, 0.125)),
    make_row("ce_gppo", 0.375, estimate(0.125), seeds_done=1),
    make_row("new", 0, estimate(0), avg_at_k=None, pass_at_k={}, entropy_initial=None, entropy_final=None,
             delta_to_baseline=None, delta_pass_at_k={}, seeds_done=0),
]  # fmt: skip


def test_render_rows_as_markdown() -> None:
    lines = render.render_rows(BOARD, "md").splitlines()
    assert lines[:2] == ["**countdown, tiny**", ""]
    assert lines[2:10] == [
        "| method | Avg@K | Pass@16 | Avg@K - grpo | Pass@16 - grpo | verdict | distinct right | entropy, start "
        "| entropy, end | seeds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| grpo | 0.500 ±0.010 | 0.750 ±0.020 | baseline | baseline |  |  | 2.000 ±0.125 | 0.500 | 3 of 3 |",
        "| b\\[bold\\] | 0.625 ±0.010 | 0.875 ±0.020 | +0.125 ±0.062 ▲ | +0.125 ±0.062 ▲ |  |  | 2.000 ±0.125 | 0.500 "
        "| 3 of 3 |",
        "| clip_v | 0.250 ±0.010 | 0.500 ±0.020 | -0.250 ±0.125 ▼ | -0.250 ±0.125 ▼ |  |  | 2.000 ±0.125 | 0.500 "
        "| 3 of 3 |",
        "| ppo | 0.375 ±0.010 | 0.625 ±0.020 | -0.125 ±0.125 | -0.125 ±0.125 |  |  | 2.000 ±0.125 | 0.500 | 3 of 3 |",
        "| ce_gppo | 0.375 ±0.010 | 0.625 ±0.020 | +0.125 | +0.125 |  |  | 2.000 ±0.125 | 0.500 | 1 of 3 |",
        "| new |  |  |  |  |  |  |  |  | 0 of 3 |",
    ]
    assert [line[:12] for line in lines[11:]] == [
        "- ± or \\[low",
        "- ▲ ▼: the s",
        "- verdict: a",
        "- Distinct r",
        "- One seed c",
        "- Not every ",
    ]


def test_render_rows_as_text() -> None:
    text = render.render_rows(BOARD, "table")
    shown = [line.split() for line in text.splitlines()]
    header, *lines = columns.table_lines(BOARD)
    assert len(lines) == len(BOARD)
    for line in lines:
        assert " ".join(line).split() in shown
    assert any(all(cell in line for cell in header) for line in text.splitlines())
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_rows_as_json() -> None:
    listed = json.loads(render.as_json(BOARD))
    assert len(listed) == len(BOARD)
    assert listed[1]["pass_at_k"] == {
        "1": {"mean": 0.625, "low": 0.615, "high": 0.635},
        "16": {"mean": 0.875, "low": 0.855, "high": 0.895},
    }
    assert listed[1]["delta_pass_at_k"]["16"] == {"mean": 0.125, "low": 0.0625, "high": 0.1875}
    assert listed[4]["delta_to_baseline"] == {"mean": 0.125, "low": None, "high": None}
    assert listed[5]["avg_at_k"] is None
    names = (
        "method task model avg_at_k pass_at_k entropy_initial entropy_final delta_to_baseline seeds_done seeds_expected"
    )
    assert set(names.split()) <= listed[0].keys()


def test_rows_as_csv() -> None:
    read = list(csv.DictReader(io.StringIO(render.as_csv(BOARD))))
    assert [line["method"] for line in read] == [row.method for row in BOARD]
    assert float(read[1]["delta_pass_at_k.16.high"]) == 0.1875
    assert (read[4]["delta_to_baseline.low"], read[5]["avg_at_k.mean"]) == ("", "")
    names = [name for name in read[0] if name.startswith("pass_at_k.16")]
    assert names == ["pass_at_k.16.mean", "pass_at_k.16.low", "pass_at_k.16.high"]


def test_format_estimate() -> None:
    assert columns.format_estimate(Estimate(0.114, 0.0944, 0.1386)) == "0.114 [0.094, 0.139]"
    assert columns.format_estimate(Estimate(0.114, 0.094, 0.134)) == "0.114 ±0.020"
    assert columns.format_estimate(Estimate(0.25, -0.125, 0.5), "+") == "+0.250 [-0.125, +0.500]"
    assert columns.format_estimate(Estimate(9.4e-12, 9.6e-152, 9.19e128)) == "0.000 [0.000, 9.2e+128]"
    assert columns.format_estimate(Estimate(0.114)) == "0.114"
    assert columns.format_estimate(None) == ""


def test_sorted_rows_have_those_without_a_text_last() -> None:
    frames = made_up_frames({method: {0: np.eye(4, 8, dtype=int)} for method in ("grpo", "clip_b", "ppo")})
    unsorted = leaderboard_rows(frames, "grpo", {"countdown": 2})
    verdicts = ("", "wins", "loses")
    named = [dataclasses.replace(row, verdict=said) for row, said in zip(unsorted, verdicts, strict=True)]
    assert [row.verdict for row in columns.sorted_rows(named, "verdict")] == ["loses", "wins", ""]


def test_hours_are_never_below_zero() -> None:
    hours = {("grpo", 0): 0.125, ("grpo", 1): 1.0}
    frames = made_up_frames({"grpo": dict.fromkeys((0, 1), np.eye(4, 8, dtype=int))}, hours=hours)
    [row] = leaderboard_rows(frames, "grpo", {"countdown": 2})
    half = 12.706204736432095 * 0.4375  # the 97.5 % quantile of t with one degree of freedom, times the standard error
    assert as_tuple(row.hours) == pytest.approx((0.5625, 0.0, 0.5625 + half))
