"""Letters that a tokenizer drops from prompts are reported, in evaluations and before training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launched import write_launched
from trainers import build

from harness.cells.state import Progress, State
from harness.launch import cell
from harness.matrix import Cell
from harness.rollout.rendering import Chat, count_unread
from harness.train import parts
from tasks import Problem, base_model
from tasks.countdown import Countdown
from tasks.countdown.recipe import CountdownRecipe

ENCODER = base_model.tokenizer(CountdownRecipe())  # with tokens for digits and signs, and letters of none but \boxed


@pytest.mark.processes
@pytest.mark.parametrize(
    ("prompts", "chat", "counts"),
    [
        (["1+2", "3"], Chat(), (0, 0)),
        (["1+2", "x=3", "abc", "αβγ", "+-*"], Chat(), (3, 2)),
        (["x=3"], Chat(system="7"), (1, 0)),
        (["x", "4"], Chat(system="7"), (1, 1)),
        # A template that forgets what it is given loses digits as well; one that has them itself hides what is lost.
        (["1", "x"], Chat(template="4"), (2, 2)),
        (["1", "x"], Chat(template="1"), (1, 1)),
    ],
)
def test_prompts_that_lose_some_or_all(prompts: list[str], chat: Chat, counts: tuple[int, int]) -> None:
    assert count_unread(ENCODER, prompts, chat) == counts


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, str], str]], None]:
    """Changes how Countdown writes its training prompts, given their numbers and what they are."""

    def write(change: Callable[[int, str], str]) -> None:
        problems = Countdown.problems

        def changed(task: Countdown, split: str) -> list[Problem]:
            given = enumerate(problems(task, split))
            return [Problem(p.id, change(i, p.prompt) if split == "train" else p.prompt, p.answer) for i, p in given]

        monkeypatch.setattr(Countdown, "problems", changed)

    return write


def run(folder: Path, capfd: pytest.CaptureFixture[str], code: int | None = None) -> str:
    torch.set_num_threads(1)
    write_launched(folder, "train.steps=1", "eval.problems=2", "eval.samples=2", "eval.every=0", method="grpo")
    if code is None:
        cell.work(folder)
    else:
        with pytest.raises(SystemExit):
            cell.work(folder)
    return capfd.readouterr().out


def test_work_keeps_its_warning(tmp_path: Path, written: Any, capfd: pytest.CaptureFixture[str]) -> None:
    written(lambda i, prompt: f"Solve {prompt}" if i % 7 else prompt)
    output = run(tmp_path, capfd)
    looked_at = len(Countdown().problems("train")[:: -(-len(Countdown().problems("train")) // parts.LOOKED_AT)])
    assert 256 <= looked_at <= 512
    state = State.read(tmp_path)
    assert state.state == "done"
    assert state.reason == Progress.read(tmp_path).reason
    assert state.reason is not None
    assert state.reason in output.splitlines()
    assert state.reason.startswith("warning: the tokenizer leaves letters out of ")
    assert state.reason.endswith(f" of {looked_at} training prompts")


def test_work_without_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "warning" not in run(tmp_path, capfd)
    assert State.read(tmp_path).reason is None


def test_prompts_of_which_nothing_is_left_are_refused(
    tmp_path: Path, written: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    written(lambda i, prompt: "Solve it.")
    run(tmp_path, capfd, code=1)
    state = State.read(tmp_path)
    assert state.state == "failed"
    assert state.reason is not None
    assert state.reason.startswith("the tokenizer of countdown-tiny has no token for any letter or digit of ")
    assert not (tmp_path / "metrics.jsonl").exists()


def test_few_prompts_are_all_looked_at(tmp_path: Path, written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = Countdown.problems
    monkeypatch.setattr(Countdown, "problems", lambda task, split: problems(task, split)[:5])
    written(lambda i, prompt: f"x{prompt}" if i == 4 else prompt)
    trainer = build(tmp_path)
    spec = Cell.of(trainer.config, "grpo", "countdown", "countdown-tiny", 0).spec
    assert parts.unread(trainer.parts, spec) == "warning: the tokenizer leaves letters out of 1 of 5 training prompts"
