"""The loop on the real model: repeatable bit for bit, independent of how tokens are split, stoppable anywhere."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from mortal import Killed
from trainers import build, records, same, trained, weights

from harness.base.errors import CellFailure, UserError
from harness.cells import evaluations
from harness.launch import cell
from harness.methods.batch import TokenBatch, TokenStats
from harness.methods.composition import Signal
from harness.rollout import proof
from harness.tokens.metrics import Stopwatch
from harness.train.collect import Collected
from harness.train.policy import Policy, check_vocabulary
from harness.train.trainer import Trainer
from tasks.countdown import evaluate_expression

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        pytest.param("grpo+clip_b", [], marks=pytest.mark.long),
        ("ppo", []),
        ("adaptive_entropy(target=9,delta=0.01,highest=1)", []),
        ("grpo+clip_b", ["rollout.lag=1", "train.resample.multiplier=1.5", "correction.kind=truncated"]),
    ],
)
def test_run_again_and_resumed(method: str, overrides: list[str], tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", method, *overrides)
    again = build(tmp_path / "again", method, *overrides)

    def kill(step: int) -> None:
        # As a SIGKILL in the middle of step 4 would leave it: step 3 logged, the checkpoint at step 2.
        again.train_step(3, Stopwatch())
        again.log.append(3, 0.0, {"reward/mean": 77.0})
        raise Killed

    with pytest.raises(Killed):
        again.run(kill)
    resumed = build(tmp_path / "again", method, *overrides)
    sample, sampled_for = resumed.collector.sample, []

    def heard(step: int, *asked: Any, **given: Any) -> Collected:
        sampled_for.append(step)
        return sample(step, *asked, **given)

    resumed.collector.sample = heard  # type: ignore[method-assign]
    resumed.run(lambda step: None)
    lag = resumed.config.rollout.lag
    assert sampled_for == [3, 4][lag:], "what was in flight at the checkpoint is not sampled again"
    assert records(tmp_path / "again") == records(tmp_path / "whole")
    assert [line["step"] for line in records(tmp_path / "whole")] == [0, 1, 2, 3, 4]
    assert same(weights(resumed), weights(whole))
    assert resumed.method.state() == whole.method.state()
    first = records(tmp_path / "whole")[1]
    assert first["reward/mean"] > 0, "nothing to learn from would make this test empty"


def test_train_step_with_a_loss_of_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a ratio of 1 the loss of a part is minus its mean advantage, times its share of all responses."""
    once = ["train.updates=1", "train.epochs=1", "dynamics.every=0", "hardware.micro_tokens=256"]
    trainer = build(tmp_path, "grpo", "train.loss_scale=micro-batch", *once)
    method, seen = trainer.method, []
    loss_of = method.loss

    def recorded(current: TokenStats, signal: Signal, part: TokenBatch) -> torch.Tensor:
        loss = loss_of(current, signal, part)
        seen.append((len(part), signal.advantages_T.double().mean().item(), loss.item()))
        return loss

    monkeypatch.setattr(method, "loss", recorded)
    trainer.train_step(1, Stopwatch())
    responses = trainer.config.train.prompts * trainer.config.train.group
    assert len(seen) > 2
    assert sum(number for number, _, _ in seen) == responses, "responses without a signal count too"
    assert any(mean for _, mean, _ in seen)
    for number, mean, loss in seen:
        assert loss == pytest.approx(-mean * number / responses, rel=1e-4, abs=1e-6)


LOGGING = """
from dataclasses import dataclass
from functools import cached_property
from harness.methods.verbs import Control

@dataclass(frozen=True)
class Logging(Control):
    @cached_property
    def heard(self):
        return []

    @cached_property
    def seen(self):
        return []

    def step_marks(self, view):
        return {"farthest": (view.ratio_T.log().abs()).max()}

    def metrics(self, view):
        return {"ratio": 77.0}

    def update_metrics(self, view):
        assert not view.current.logp.requires_grad
        self.seen.append((len(view.ratio_T), float(view.marks["farthest"])))
        return {"ratio": view.ratio_T, "risen": view.ratio_T > 1, "quarter": 0.25, "farthest": view.marks["farthest"]}

    def observe(self, metrics):
        self.heard.append(metrics)

METHODS = {"logging": Logging}
"""


def test_train_step_update_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with the trainer's own mean ratio, and with a mean over tokens of the numbers that a method returned."""
    (tmp_path / "logging_plugin.py").write_text(LOGGING)
    monkeypatch.syspath_prepend(tmp_path)
    shared = ["plugins=[logging_plugin]", "train.lr=1e-2", "hardware.micro_tokens=256"]
    trainer = build(tmp_path / "logging", "logging", *shared)
    record = trainer.train_step(1, Stopwatch())
    control = trainer.method.controls["logging"]
    seen = vars(control)["seen"]
    assert len(seen) > 2, "otherwise no update has several parts"
    assert len({farthest for _, farthest in seen}) == 2, "otherwise the two updates cannot be told apart"
    assert record["updates/logging/ratio"] == pytest.approx(record["ratio/mean"], rel=1e-12)
    assert record["updates/logging/ratio"] != 1
    assert 0 < record["updates/logging/risen"] < 1
    assert record["updates/logging/quarter"] == 0.25
    total = sum(tokens for tokens, _ in seen)
    mean = sum(tokens * farthest for tokens, farthest in seen) / total
    assert record["updates/logging/farthest"] == pytest.approx(mean, rel=1e-6)
    assert record["logging/ratio"] == 77.0, "a number of the same key from before the update stays"
    (heard,) = vars(control)["heard"]
    assert heard["ratio"] == 77.0
    assert heard["updates/ratio"] == heard["updates/logging/ratio"] == record["updates/logging/ratio"]
    plain = build(tmp_path / "plain", "grpo", *shared)
    plain.train_step(1, Stopwatch())
    assert same(weights(plain), weights(trainer)), "logging changes no gradient"


def test_train_step_batch_answers(tmp_path: Path) -> None:
    trainer = build(tmp_path, "outcome_exploration")
    collected = trainer.collector.collect(1, Stopwatch())
    numbers = trainer.batch_of(collected, 1).answers_B.tolist()
    size, seen = len(collected.groups[0]), set()
    texts = [judged.text for group in collected.judged for judged in group]
    for start in range(0, len(texts), size):
        for i in range(start, start + size):
            for j in range(start, start + size):
                assert (numbers[i] == numbers[j]) == (texts[i] == texts[j])
                seen.add(texts[i] == texts[j] and i != j)
    assert seen == {True, False}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_train_step_refuses_a_moved_policy(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build(tmp_path, "grpo", f"train.dtype={dtype}")
    before = trainer.stats_before

    def moved(*given: Any) -> Any:
        stats = before(*given)
        return dataclasses.replace(stats, logp=stats.logp - 0.6)

    trainer.stats_before = moved  # type: ignore[assignment, method-assign]
    monkeypatch.setattr(proof, "check_log_ratios", lambda *_: None)
    with pytest.raises(CellFailure, match="the importance ratio of the first update is 1; "):
        trainer.train_step(1, Stopwatch())


def test_check_vocabulary(tmp_path: Path) -> None:
    trainer = build(tmp_path)
    model, largest = trainer.policy.module, len(trainer.parts.tokenizer)
    check_vocabulary(trainer.parts.tokenizer, model, tmp_path)
    trainer.parts.tokenizer.add_tokens(["<one more>"])
    with pytest.raises(UserError, match=f"has tokens up to {largest}, but its head gives only {largest} logits"):
        check_vocabulary(trainer.parts.tokenizer, model, tmp_path)


def test_non_finite_losses_and_gradients_stop_with_a_reason(tmp_path: Path) -> None:
    policy: Policy = build(tmp_path).policy
    parameter = next(policy.module.parameters())
    with pytest.raises(CellFailure, match="loss of the policy is nan"):
        policy.backward(parameter.sum() * float("nan"))
    before = parameter.detach().clone()
    parameter.grad = torch.full_like(parameter, float("inf"))
    with pytest.raises(CellFailure, match="gradient of the policy is not finite"):
        policy.step(1)
    assert torch.equal(parameter, before)


def test_done_means_that_every_step_and_answer_is_there(tmp_path: Path) -> None:
    trainer = trained(tmp_path, "grpo", "train.steps=1")
    cell.check_complete(trainer)
    record = evaluations.read_evaluation(evaluations.evaluation_path(tmp_path, "countdown", 1))
    evaluations.write_evaluation(tmp_path, {**record, "right": [row[1:] for row in record["right"]]})
    with pytest.raises(CellFailure, match="lacks samples"):
        cell.check_complete(trainer)
    trainer.log.truncate(0)
    with pytest.raises(CellFailure, match="1 steps where 2"):
        cell.check_complete(trainer)


def assert_ended_early(lines: list[dict[str, float]], end: int, expected: list[dict[str, float]]) -> None:
    """Check that a cell has the records of a whole one up to a step, and evaluated after it."""
    evaluation = {key: value for key, value in lines[end].items() if key.startswith("eval/")}
    assert evaluation.keys() == {key for key in expected[4] if key.startswith("eval/")}
    assert lines == [*expected[:end], expected[end] | evaluation]


def test_run_ends_at_a_collapse(tmp_path: Path) -> None:
    trained(tmp_path / "whole", "grpo")
    expected = records(tmp_path / "whole")
    entropies = [line["entropy/mean"] for line in expected[1:]]
    # The last step but one whose entropy is lower than any before: which one that is depends on the processor.
    end = max(step for step in (1, 2, 3) if entropies[step - 1] == min(entropies[:step]))
    stop = f"stop.entropy_below={(entropies[end - 1] + min(entropies[: end - 1], default=9.0)) / 2}"
    stopped = build(tmp_path / "stopped", "grpo", stop)
    durable: list[int] = []
    stopped.run(durable.append)
    assert stopped.ending.step == durable[-1] == end
    actual = records(tmp_path / "stopped")
    assert_ended_early(actual, end, expected)
    cell.check_complete(stopped)

    before = list(durable)
    resumed = build(tmp_path / "stopped", "grpo", stop)
    resumed.run(durable.append)
    assert (resumed.ending.step, durable) == (end, [*before, end]), "it stays stopped"
    assert same(weights(resumed), weights(stopped))
    assert records(tmp_path / "stopped") == actual
    cell.check_complete(resumed)

    resumed.log.append(end + 1, 0.0, {"entropy/mean": 9.0})
    with pytest.raises(CellFailure, match=f"{end + 2} steps where {end + 1}"):
        cell.check_complete(resumed)
    resumed.log.truncate(end - 1)
    with pytest.raises(CellFailure, match=f"{end} steps where 5"):
        cell.check_complete(resumed)


def test_run_ends_at_a_number_of_tokens(tmp_path: Path) -> None:
    trained(tmp_path / "whole", "grpo")
    expected = records(tmp_path / "whole")
    totals = [line["tokens/generated_total"] for line in expected[1:]]
    for tokens, end in ((totals[1], 2), (totals[1] + 1, 3), (totals[-1] + 1, 4)):  # at the bound, above it, never
        folder = tmp_path / str(tokens)
        stopped = trained(folder, "grpo", f"stop.tokens={tokens:.0f}")
        assert_ended_early(records(folder), end, expected)
        cell.check_complete(stopped)


def has_done(trainer: Trainer, step: int) -> bool:
    return trainer.done_steps >= step


def test_run_ends_without_a_signal(tmp_path: Path) -> None:
    """Answers of one token are never right. A run that is interrupted after each step counts on."""
    silent = ["rollout.max_new_tokens=1", "checkpoint.every=2"]
    whole = build(tmp_path / "whole", "grpo", *silent)
    before = weights(whole)
    whole.run(lambda step: None)
    expected = records(tmp_path / "whole")
    assert [line["reward/groups_without_signal"] for line in expected[1:]] == [1.0] * 4
    for step in (1, 2, 3):
        resumed = build(tmp_path / "stopped", "grpo", *silent, "stop.without_signal=3")
        resumed.run(lambda step: None, partial(has_done, resumed, step))
        assert (resumed.ending.silent, resumed.done_steps) == (step, step)
    assert (resumed.ending.step, resumed.last_step) == (3, 3)
    assert_ended_early(records(tmp_path / "stopped"), 3, expected)
    cell.check_complete(resumed)
    assert same(weights(resumed), before), "nothing was learned"


def test_train_step_answer_metrics(tmp_path: Path) -> None:
    """Compare with a loop over the texts: the first box of each, and the tokens that spell the text up to its end."""
    trainer = build(tmp_path, "grpo", "rollout.temperature=1.5")
    collect, stats_before = trainer.collector.collect, trainer.stats_before
    seen: list[Any] = []

    def heard(value: Any) -> Any:
        seen.append(value)
        return value

    trainer.collector.collect = lambda *given: heard(collect(*given))  # type: ignore[method-assign]
    trainer.stats_before = lambda *given: heard(stats_before(*given))  # type: ignore[method-assign]
    record = trainer.train_step(1, Stopwatch())
    collected, stats = seen

    different = [len({tuple(rollout.response) for rollout in group}) / len(group) for group in collected.groups]
    assert record["responses/distinct"] == sum(different) / len(different) < 1
    shares, tails, kept, place = [], [], list[float](), 0
    for group in collected.groups:
        answers = set()
        for rollout in group:
            letters = [trainer.parts.tokenizer.decode([token]) for token in rollout.response]
            text = "".join(letters[:-1] if rollout.finished else letters)
            box = re.search(r"\\boxed\{([^{}]*)\}", text)
            whole = box is not None and box[0] == text
            answer = evaluate_expression(box[1]) if box is not None and whole else None
            answers |= {answer.normal} if answer is not None else set()
            tails.append(box is not None and box.end() < len(text))
            end = len(letters)
            if box is not None:
                end = next(n for n in range(len(letters)) if len("".join(letters[:n])) >= box.end())
            kept += stats.entropy[place : place + end].tolist()
            place += len(letters)
        shares.append(len(answers) / len(group))
    assert place == len(stats.entropy)
    assert record["responses/distinct_answers"] == pytest.approx(sum(shares) / len(shares))
    assert record["responses/after_answer"] == pytest.approx(sum(tails) / len(tails))
    assert record["entropy/answer"] == pytest.approx(sum(kept) / len(kept), rel=1e-5)
    assert 0 < sum(tails) < len(tails), "otherwise nothing follows an answer"
    assert abs(record["entropy/answer"] / record["entropy/mean"] - 1) > 1e-3
