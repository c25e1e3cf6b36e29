"""The choice of training problems: exact bounds, and pass rates that are measured once despite kills and waits."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import invented
import pytest
import torch
from mortal import Killed
from trainers import asked, planned

from harness.base import files, locks
from harness.base.errors import UserError
from harness.base.task import Answer, Problem, Verdict, Verifier
from harness.config import Config, Filter, RolloutConfig, Train, Verify, replaced
from harness.methods.batch import Rollout
from harness.rollout import models
from harness.rollout.rendering import Chat
from harness.tokens.metrics import Stopwatch
from harness.train import filter, parts
from harness.train.evaluate import Evaluator
from harness.train.filter import Asker, TrainingPool
from harness.train.trainer import Trainer
from harness.verify.pool import TooManyFailures
from harness.verify.pool import VerifierPool as Pooled
from tasks.countdown import Countdown

pytestmark = pytest.mark.slow

UNASKED = Pooled()


@dataclasses.dataclass(frozen=True)
class Counting:
    """Problem i is solved by the responses 0 to i - 1 of the engine below."""

    name: ClassVar[str] = "counting"
    splits: ClassVar[tuple[str, ...]] = ("train",)

    count: int = 17
    all_are: Verdict | None = None

    def problems(self, split: str) -> list[Problem]:
        assert split == "train"
        return [Problem(f"p{i}", "x" * (i + 1), str(i)) for i in range(self.count)]

    def answers(self, pairs: Sequence[tuple[Problem, str]]) -> list[Answer | None]:
        return [Answer(text, len(text)) for _, text in pairs]

    def verdicts(self, pairs: Sequence[tuple[Problem, str]], verifier: Verifier) -> list[Verdict]:
        assert verifier is UNASKED
        if self.all_are is not None:
            return [self.all_are for _ in pairs]
        return [Verdict.RIGHT if int(text) < int(problem.answer) else Verdict.WRONG for problem, text in pairs]


class Letters:
    """A tokenizer with a token a character, which decodes every token as its number."""

    chat_template = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}

    def batch_decode(self, responses: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        assert not skip_special_tokens
        return [str(token) for (token,) in responses]


class Numbered:
    """An engine whose sample j is the token j; keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def load(self, model: Any) -> None:
        raise AssertionError("the filter changes no weights")

    def generate(self, prompts: Sequence[Sequence[int]], n: int, **settings: Any) -> list[list[Rollout]]:
        self.calls.append({"prompts": prompts, "n": n, **settings})
        groups = [[Rollout(list(prompt), [j], [0.0], False) for j in range(n)] for prompt in prompts]
        for number, group in reversed(list(enumerate(groups))):  # as they end
            settings["on_group"](number, group)
        return groups


def asker(**changes: Any) -> Asker:
    sampling: dict[str, Any] = {"engine": Numbered(), "tokenizer": Letters(), "verifier": UNASKED}
    for name in ("engine", "chat", "context"):
        if name in changes:
            sampling[name] = changes.pop(name)
    config = Config(
        train=Train(dtype=changes.pop("dtype", "float32")),
        rollout=changes.pop("rollout", RolloutConfig(max_new_tokens=8)),
        verify=Verify(limit_s=changes.pop("limit_s", 5.0)),
    )
    values: dict[str, Any] = {"model": {"path": "m"}, "task": Counting(), "config": config}
    return Asker(**(values | changes), evaluator=Evaluator(**sampling))


def calls_of(who: Asker) -> list[dict[str, Any]]:
    assert isinstance(who.evaluator.engine, Numbered)
    return who.evaluator.engine.calls


def ask(
    who: Asker,
    cache: Path,
    given: Filter | None = Filter(),  # noqa: B008
    say: Callable[[str], None] = lambda text: None,
) -> TrainingPool:
    """Ask five problems at a time."""
    filtering = dataclasses.replace(who, config=replaced(who.config, "train.filter", given))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENTROBENCH_CACHE", str(cache))
        patch.setattr(filter, "RESPONSES", 5 * (1 if given is None else given.n))
        return filter.training_pool(filtering, who.verdicts, say)


def ids(pool: TrainingPool) -> list[str]:
    return [problem.id for problem in pool.problems]


# The bounds


def test_training_pool_strict_bounds(tmp_path: Path) -> None:
    """0 and 1 of 16 are too hard, 15 and 16 too easy, 2 to 14 stay."""
    pool = ask(asker(), tmp_path)
    assert ids(pool) == [f"p{i}" for i in range(2, 15)]
    assert pool.record == {"problems/given": 17, "problems/too_hard": 2, "problems/too_easy": 2, "problems/kept": 13}


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 16, 30, 100])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.1, 0.9), (0.3, 0.7), (0.0625, 0.9375), (0.29, 0.57)])
def test_training_pool_bounds_in_decimals(n: int, low: float, high: float) -> None:
    exactly = [Fraction(str(low)), Fraction(str(high))]
    fewest, most = Filter(n, low, high).bounds()
    for right in range(n + 1):
        assert (fewest <= right <= most) == (exactly[0] < Fraction(right, n) < exactly[1])


# What is asked, and when


def test_training_pool_without_a_filter(tmp_path: Path) -> None:
    who = asker()
    pool = ask(who, tmp_path, None)
    assert len(pool.problems) == 17
    assert pool.record == {"problems/given": 17, "problems/kept": 17}
    assert not calls_of(who)
    assert not list(tmp_path.iterdir())


def test_training_pool_leaves_long_prompts_out(tmp_path: Path) -> None:
    who = asker(rollout=RolloutConfig(max_new_tokens=8, max_prompt_tokens=9))
    pool = ask(who, tmp_path)
    assert ids(pool) == [f"p{i}" for i in range(2, 9)]
    assert pool.record["problems/too_long"] == 8
    assert max(len(prompt) for call in calls_of(who) for prompt in call["prompts"]) == 9
    assert ids(ask(who, tmp_path / "none", None)) == [f"p{i}" for i in range(9)]


@pytest.mark.parametrize("given", [None, Filter()])
def test_training_pool_refuses_prompts_beyond_the_context(tmp_path: Path, given: Filter | None) -> None:
    rollout = RolloutConfig(max_new_tokens=8, max_prompt_tokens=9)  # longer prompts are left out first
    ask(asker(context=17, rollout=rollout), tmp_path, given)
    who = asker(context=16, rollout=rollout)
    with pytest.raises(UserError, match=r"is 8, but with 1 of 9 prompts of counting that exceeds .*allowed: up to 7"):
        ask(who, tmp_path / "beyond", given)
    assert not calls_of(who)


def test_training_pool_asks_as_in_training(tmp_path: Path) -> None:
    chat = Chat(system="S")
    who = asker(chat=chat, rollout=RolloutConfig(temperature=0.5, max_new_tokens=3))
    ask(who, tmp_path, Filter(n=4, low=0, high=1))
    calls = calls_of(who)
    assert [len(call["prompts"]) for call in calls] == [5, 5, 5, 2]
    assert {(call["n"], call["temperature"], call["max_new_tokens"]) for call in calls} == {(4, 0.5, 3)}
    asked = [prompt for call in calls for prompt in call["prompts"]]
    assert asked == [[ord(c) for c in f"S\n\n{problem.prompt}"] for problem in Counting().problems("train")]
    assert len({seed for call in calls for seed in call["seeds"]}) == 17


def test_training_pool_with_other_bounds(tmp_path: Path) -> None:
    who = asker()
    ask(who, tmp_path)
    before = len(calls_of(who))
    assert ids(ask(who, tmp_path, Filter(low=0.5, high=0.75))) == ["p9", "p10", "p11"]
    assert len(calls_of(who)) == before


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ({"model": {"path": "other"}}, Filter()),
        ({"task": Counting(count=16)}, Filter()),
        ({"rollout": RolloutConfig(temperature=0.9, max_new_tokens=8)}, Filter()),
        ({"rollout": RolloutConfig(max_new_tokens=9)}, Filter()),
        ({"rollout": RolloutConfig(engine="vllm", max_new_tokens=8)}, Filter()),
        ({"chat": Chat(system="Think.")}, Filter()),
        ({"dtype": "bfloat16"}, Filter()),
        ({"limit_s": 1.0}, Filter()),
        ({}, Filter(n=15)),
    ],
)
def test_training_pool_with_other_settings(changes: dict[str, Any], given: Filter, tmp_path: Path) -> None:
    ask(asker(), tmp_path)
    other = asker(**changes)
    ask(other, tmp_path, given)
    assert calls_of(other)
    assert len(list(tmp_path.glob("filters/*.json"))) == 2


def test_training_pool_after_an_edit_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same responses are judged again."""
    before, after = asker(), asker()
    ask(before, tmp_path)
    monkeypatch.setattr(filter, "source_digest", lambda task: "edited")
    ask(after, tmp_path)
    seeds = [[call["seeds"] for call in calls_of(who)] for who in (before, after)]
    assert seeds[0] == seeds[1] != []


def test_training_pool_refuses_to_keep_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no problem of counting is left .*17 too hard, 0 too easy, 0 kept"):
        ask(asker(task=Counting(all_are=Verdict.UNPARSED)), tmp_path)


def test_training_pool_with_a_failing_verifier(tmp_path: Path) -> None:
    with pytest.raises(TooManyFailures, match="80 of 80 answers"):
        ask(asker(task=Counting(all_are=Verdict.TIMEOUT)), tmp_path)
    assert not list(tmp_path.glob("filters/*.json"))


def test_training_pool_in_a_read_only_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"the cache .* cannot be written \(Not a directory\); set ENTROBENCH_CACHE"):
        ask(asker(), tmp_path / "file" / "cache")


# Killed, and several at once


class Mortal(Numbered):
    def __init__(self, lives: int) -> None:
        super().__init__()
        self.lives = lives

    def generate(self, *given: Any, **named: Any) -> list[list[Rollout]]:
        if len(self.calls) == self.lives:
            raise Killed
        return super().generate(*given, **named)


def test_training_pool_after_a_kill(tmp_path: Path) -> None:
    whole = asker()
    ask(whole, tmp_path / "whole")
    messages: list[str] = []
    first, second = asker(engine=Mortal(2)), asker()
    with pytest.raises(Killed):
        ask(first, tmp_path / "killed", say=messages.append)
    assert messages[-1].startswith("difficulty filter: 10 of 17 problems asked")
    pool = ask(second, tmp_path / "killed", say=messages.append)
    assert messages[-1] == "training problems: 17 given, 2 too hard, 2 too easy, 13 kept"

    def asked(*who: Asker) -> list[tuple[list[int], int]]:
        calls = [call for one in who for call in calls_of(one)]
        return [pair for call in calls for pair in zip(call["prompts"], call["seeds"], strict=True)]

    assert asked(first, second) == asked(whole)
    (one,), (other,) = ((tmp_path / name).glob("filters/*.json") for name in ("whole", "killed"))
    assert (one.name, json.loads(one.read_text())) == (other.name, json.loads(other.read_text()))
    assert ids(pool) == [f"p{i}" for i in range(2, 15)]


class Slow(Numbered):
    """Leaves a line for each call; every process sees the file."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log

    def generate(self, *given: Any, **named: Any) -> list[list[Rollout]]:
        with open(self.log, "a") as log:
            log.write(f"{os.getpid()}\n")
        time.sleep(0.1)
        return super().generate(*given, **named)


def cell_process(cache: Path, out: Path) -> None:
    messages: list[str] = []
    pool = ask(asker(engine=Slow(cache / "log")), cache, say=messages.append)
    files.write_json(out / f"{os.getpid()}.json", {"kept": ids(pool), "said": messages})


@pytest.mark.processes
def test_training_pool_of_several_cells(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # about a fork in a process with threads; the children use none
        processes = [context.Process(target=cell_process, args=(tmp_path, out)) for _ in range(3)]
        for process in processes:
            process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 4
    assert len(set(lines)) == 1
    results = [files.read_json(path) for path in out.iterdir()]
    assert [result["kept"] for result in results] == [[f"p{i}" for i in range(2, 15)]] * 3
    assert sum(result["said"][0].startswith("waiting for another process") for result in results) == 2


def test_training_pool_gives_signs_of_progress_while_another_process_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a cell that waits for longer than hardware.stall_minutes would fail."""
    monkeypatch.setattr(locks, "POLL", 0.01)
    ask(asker(), tmp_path)
    (counts,) = (tmp_path / "filters").glob("*.json")
    counts.unlink()
    of_another = locks.lock(counts.with_suffix(".lock"))
    of_another.acquire()
    signs: list[int] = []
    said: list[str] = []

    def on_progress() -> None:
        signs.append(len(said))
        if len(signs) == 3:
            of_another.release()

    pool = ask(asker(on_progress=on_progress), tmp_path, say=said.append)
    assert ids(pool) == [f"p{i}" for i in range(2, 15)]
    assert signs == [1, 1, 1]
    assert said[0] == "waiting for another process, which measures the difficulty of the same problems"


# With a real model


SHORT = ["train.steps=2", "train.prompts=8", "train.updates=2", "train.group=4", "eval.problems=4", "eval.samples=2"]
SHORT += ["eval.k=1", "eval.every=0", "train.filter={n: 8, low: 0.125, high: 0.875}"]


def counted(cache: Path) -> dict[str, int]:
    (path,) = cache.glob("filters/*.json")
    right: dict[str, int] = files.read_json(path)["right"]
    return right


def test_trainer_with_a_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 48 problems of Countdown instead of thousands."""
    torch.set_num_threads(1)
    every, cache = Countdown.problems, tmp_path / "cache"
    monkeypatch.setattr(Countdown, "problems", lambda self, split: every(self, split)[:48])
    invented.prepare_in(cache, monkeypatch)
    spec = planned(*SHORT, method="a2po").spec
    trainer = Trainer(parts.build_parts(spec, UNASKED, print), tmp_path / "cell")
    right = counted(cache)
    kept = {name for name, count in right.items() if 1 < count < 7}
    assert 0 < len(kept) < 48, "the tiny model solves some of these problems sometimes"
    assert {problem.id for problem in trainer.parts.pool.problems} == kept
    trainer.engine.load(trainer.policy.module)
    collected = trainer.collector.sample(1, Stopwatch())
    batch = trainer.batch_of(collected, 1)
    for part in (batch, batch.without_copies()[0], batch.take(range(31, -1, -3)), *batch.split(2)):
        shares = [right[collected.answered[group].problem.id] / 8 for group in part.groups_B.tolist()]
        assert part.base_right_B.tolist() == shares
    trainer.run(lambda step: None)
    first = json.loads((tmp_path / "cell" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["metrics"]["problems/kept"] == len(kept)
    assert {problem.id for step in (1, 2, 3, 4) for problem in asked(trainer, step)} <= kept

    # A trained cell that starts again without the cache asks the base model, not the one that it has trained.
    (path,) = cache.glob("filters/*.json")
    model = models.resolve("countdown-tiny")
    digest = model.digest(model.folder())
    assert files.read_json(path)["identity"]["model"]["digest"] == digest, "another machine may make other weights"
    path.unlink()
    monkeypatch.setattr(filter, "RESPONSES", 24)  # in threes of 8
    parts.build_parts(spec, UNASKED, print)
    assert counted(cache) == right, "nor does it matter how many problems are asked at a time"
