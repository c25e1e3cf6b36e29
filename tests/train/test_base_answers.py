"""The evaluation before training: once for all cells of a seed, and each cell has the records that it has alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from patience import HANG, wait_until
from trainers import records

from harness import config, matrix
from harness.launch import cell as process
from harness.launch.launcher import prepare_cell
from harness.matrix import Cell
from harness.train.base_answers import BaseAnswers
from harness.train.evaluate import Evaluator
from tasks import Problem
from tasks.countdown import Countdown

SHORT = ["train.steps=1", "train.prompts=4", "train.group=4", "eval.problems=3", "eval.samples=2", "eval.k=2"]
PROBLEMS = Countdown().problems("test")[:2]
ANSWERS = [{"problem": problem.id, "responses": ["é\u2028", "1"], "answers": [None, "1"]} for problem in PROBLEMS]


# Of whole cells


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of problems of each evaluation that is sampled."""
    monkeypatch.setattr(process, "write_log", lambda place: None)
    sampled: list[int] = []
    sample = Evaluator.sample

    def counted(self: Evaluator, task: Any, problems: Sequence[Problem], **settings: Any) -> Any:
        sampled.append(len(problems))
        return sample(self, task, problems, **settings)

    monkeypatch.setattr(Evaluator, "sample", counted)
    return sampled


def cells_in(results: Path, *overrides: str) -> list[Cell]:
    """Return the cells of a matrix; they share answers once it is claimed."""
    return matrix.cells(config.load_config("smoke", [*SHORT, f"results={results}", *overrides]))


def run(cell: Cell) -> None:
    prepare_cell(cell)
    process.main(str(cell.folder), wait=0)
    assert cell.progress().state == "done"


def answers_of(cell: Cell) -> dict[str, Any]:
    """Return the bytes of a cell's evaluations and answers, and its metrics without times."""
    paths = [*cell.folder.glob("evals/*"), *cell.folder.glob("samples/evaluate-*")]
    assert len(paths) == 4  # before training and at the end
    return {path.name: path.read_bytes() for path in paths} | {"metrics": records(cell.folder)}


@pytest.mark.slow
def test_cells_of_a_seed_share_the_evaluation_before_training(evaluations: list[int], tmp_path: Path) -> None:
    alone = cells_in(tmp_path / "alone")
    shared = cells_in(tmp_path / "shared")
    for cell in alone:
        run(cell)
    assert evaluations == [3, 3] * 2
    evaluations.clear()
    matrix.claim(shared[0].config)
    for cell in shared:
        run(cell)
    assert evaluations == [3, 3, 3], "the second cell has sampled at the end alone"
    assert [answers_of(cell) for cell in shared] == [answers_of(cell) for cell in alone]

    evaluations.clear()
    others = ["seeds=[1]", "eval.samples=4", "eval.temperature=0.5", "rollout.max_new_tokens=9", "train.dtype=bfloat16"]
    for changed in others:
        run(cells_in(tmp_path / "shared", "methods=[grpo]", changed)[0])
    assert evaluations == [3, 3] * len(others)

    evaluations.clear()
    for changed in ("train.lr=0.002", "train.group=8"):
        run(cells_in(tmp_path / "shared", "methods=[clip_b]", "baseline=clip_b", changed)[0])
    assert evaluations == [3] * 2, "of no setting of these do the answers depend"


@pytest.mark.slow
def test_cell_with_changed_answers(evaluations: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = cells_in(tmp_path)
    matrix.claim(first.config)
    run(first)
    (kept,) = (first.config.folder / "base").glob("*.json")
    before = kept.read_bytes()
    kept.write_bytes(before.replace(b'"right"', b'"wrong"').replace(b'"unparsed"', b'"right"'))
    assert kept.read_bytes() != before
    run(second)
    assert evaluations == [3] * 4
    assert f"{kept} is damaged" in capsys.readouterr().out
    assert kept.read_bytes() == before
    evals = [cell.folder / "evals" / "countdown-000000.json" for cell in (first, second)]
    assert evals[0].read_bytes() == evals[1].read_bytes()


# Of the kept answers alone


def kept_in(folder: Path, **changes: Any) -> BaseAnswers:
    values: dict[str, Any] = {
        "deciding": {"base_model": "a"},
        "rendered": lambda problem: [1],
        "on_progress": lambda: None,
    }
    return BaseAnswers(folder / "base", Countdown(), **(values | changes))


def unwanted(problems: Sequence[Problem], **sampling: Any) -> list[Any]:
    raise AssertionError("they are there")


def given(problems: Sequence[Problem], **sampling: Any) -> list[Any]:
    return ANSWERS


def test_answers_are_kept_for_all_that_decides_them(tmp_path: Path) -> None:
    assert kept_in(tmp_path).answers(given, PROBLEMS, seed=(1,), n=2) == ANSWERS
    assert kept_in(tmp_path).answers(unwanted, PROBLEMS, seed=(1,), n=2) == ANSWERS
    others = [
        (kept_in(tmp_path), PROBLEMS, {"seed": (2,), "n": 2}),
        (kept_in(tmp_path), PROBLEMS[:1], {"seed": (1,), "n": 2}),
        (kept_in(tmp_path, deciding={"base_model": "b"}), PROBLEMS, {"seed": (1,), "n": 2}),
        (kept_in(tmp_path, rendered=lambda problem: [2]), PROBLEMS, {"seed": (1,), "n": 2}),
    ]
    for kept, problems, sampling in others:
        with pytest.raises(AssertionError, match="they are there"):
            kept.answers(unwanted, problems, **sampling)


def test_answers_in_a_file_of_others_are_not_taken(tmp_path: Path) -> None:
    kept_in(tmp_path).answers(given, PROBLEMS, seed=1)
    (mine,) = (tmp_path / "base").glob("*.json")
    kept_in(tmp_path).answers(lambda *_, **__: [], PROBLEMS, seed=2)
    (other,) = {*(tmp_path / "base").glob("*.json")} - {mine}
    other.replace(mine)
    assert kept_in(tmp_path).answers(given, PROBLEMS, seed=1) == ANSWERS
    assert json.loads(mine.read_bytes())["records"] == ANSWERS


def sample_for_ever(folder: Path) -> None:
    def sample(problems: Sequence[Problem], **sampling: Any) -> list[Any]:
        (folder / "sampling").touch()
        time.sleep(HANG)
        return ANSWERS

    kept_in(folder).answers(sample, PROBLEMS, seed=1)


def wait_for_answers(folder: Path) -> None:
    waiting = kept_in(folder, on_progress=(folder / "waiting").touch)
    assert waiting.answers(given, PROBLEMS, seed=1) == ANSWERS
    os._exit(7)


@pytest.mark.processes
def test_cell_waits_for_the_one_that_samples_and_goes_on_when_that_is_killed(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    first, second = (fork.Process(target=each, args=(tmp_path,)) for each in (sample_for_ever, wait_for_answers))
    first.start()
    wait_until((tmp_path / "sampling").exists)
    second.start()
    for _ in range(2):  # signs of progress
        wait_until((tmp_path / "waiting").exists)
        (tmp_path / "waiting").unlink()
    assert second.is_alive()
    assert not list((tmp_path / "base").glob("*.json"))
    first.kill()
    for each in (first, second):
        each.join()
    assert (first.exitcode, second.exitcode) == (-signal.SIGKILL, 7)
    assert kept_in(tmp_path).answers(unwanted, PROBLEMS, seed=1) == ANSWERS
