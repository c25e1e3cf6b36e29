"""Right responses of the model before training: which they are, when their turn comes, and the gradient they give."""

from __future__ import annotations

import math
from math import nan
from pathlib import Path
from unittest import mock

import invented
import pytest
import torch
from companions import on_ranks
from known import known
from registered import method
from trainers import build, check_resumed, same, weights

from harness import ranks
from harness.base.errors import UserError
from harness.methods.batch import TokenBatch
from harness.tokens.metrics import Stopwatch
from harness.train.base_responses import BaseResponses, right_responses
from harness.train.trainer import Trainer
from tasks import Problem
from tasks.countdown import Countdown

pytestmark = pytest.mark.slow

SETTINGS = ["train.filter={n: 4, low: 0, high: 0.5}", "train.steps=3", "checkpoint.every=1", "dynamics.every=0"]
every_problem = Countdown.problems


def few_problems(task: Countdown, split: str) -> list[Problem]:
    """Return the first problems, since the filter asks all of them."""
    return every_problem(task, split)[:96]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Countdown, "problems", few_problems)
    invented.prepare_in(tmp_path / "cache", monkeypatch)


def base_of(trainer: Trainer) -> BaseResponses:
    assert trainer.parts.base_responses is not None
    return trainer.parts.base_responses


def minibatch_of(trainer: Trainer, step: int) -> TokenBatch:
    return next(trainer.batch_of(trainer.collector.sample(step, Stopwatch()), step).split(2))


def logp_of(trainer: Trainer, prompt: list[int], response: list[int]) -> torch.Tensor:
    """Return the log p of a response's tokens by the present policy, computed alone."""
    logits_LV = trainer.policy.module(input_ids=torch.tensor([prompt + response])).logits[0]
    logp_LV = (logits_LV / trainer.policy.temperature).log_softmax(-1).double()
    return logp_LV[len(prompt) - 1 : -1].gather(1, torch.tensor(response)[:, None])[:, 0]


def test_sampled_are_right_and_answer_easy_problems(tmp_path: Path) -> None:
    trainer = build(tmp_path, "dph_rl", *SETTINGS)
    base, pool = base_of(trainer), trainer.parts.pool
    assert {problem.id for problem in pool.easy}.isdisjoint(problem.id for problem in pool.problems)
    by_prompt = {tuple(trainer.collector.prompt(problem)): problem for problem in pool.easy}
    assert 1 < len(base.responses) <= len(pool.easy) == pool.record["problems/too_easy"]
    assert len({tuple(rollout.prompt) for rollout in base.responses}) == len(base.responses), "one to each problem"
    for rollout, logp_T in zip(base.responses, base.base_logp, strict=True):
        text = trainer.parts.tokenizer.decode(rollout.response[: len(rollout.response) - rollout.finished])
        assert Countdown().verdict(by_prompt[tuple(rollout.prompt)], text) == "right"
        torch.testing.assert_close(
            logp_T.double(), logp_of(trainer, rollout.prompt, rollout.response), rtol=1e-4, atol=1e-4
        )
    with pytest.raises(UserError, match=r"has 0 right responses .* of 0 problems of countdown .* lower train\.filter"):
        right_responses(mock.Mock(task=trainer.parts.task), [], 0, print)


def responses_of(base: BaseResponses, update: int) -> list[tuple[int, ...]]:
    return [tuple(map(int, sequence)) for sequence in base.batch(update, 3, 99, "cpu")[0].sequences]


def test_batch_gives_each_response_its_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = base_of(build(tmp_path, "dph_rl", *SETTINGS))
    size = len(base.responses)
    own = [response for update in range(max(size, 5)) for response in responses_of(base, update)]
    every = sorted(tuple(rollout.prompt + rollout.response) for rollout in base.responses)
    assert all(sorted(own[start : start + size]) == every for start in range(0, 3 * size, size))
    assert own[:size] != own[size : 2 * size]
    monkeypatch.setattr(ranks, "count", lambda: 2)
    by_rank = []
    for rank in range(2):
        monkeypatch.setattr(ranks, "own_rank", lambda rank=rank: rank)
        by_rank.append(responses_of(base, 4))
    assert by_rank == [[own[12], own[14]], [own[13]]]


@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
@pytest.mark.parametrize("divergence", ["forward", "js"])
def test_add_base_gradient_by_loops(divergence: str, normalise: str, tmp_path: Path) -> None:
    spec = f"grpo(normalise={normalise})+dph_rl(coefficient=0.7,divergence={divergence})"
    trainer = build(tmp_path, spec, *SETTINGS)
    trainer.train_step(1, Stopwatch())  # or else the policy would be the model before training, with a gradient of 0
    base, minibatch = base_of(trainer), minibatch_of(trainer, 2)
    batch, base_logp_T = base.batch(2, 4, 0, "cpu")
    loss, tokens, at = torch.zeros((), dtype=torch.float64), len(base_logp_T), 0
    for sequence, prompt_length, length in zip(batch.sequences, batch.prompt_lengths_B, batch.lengths_B, strict=True):
        response = sequence[prompt_length:].tolist()
        logp_T = logp_of(trainer, sequence[:prompt_length].tolist(), response)
        scale = {"token": 4 / 32 / tokens, "sequence": 1 / 32 / int(length), "constant": 1 / 32 / minibatch.budget}
        for logp, before in zip(logp_T, base_logp_T[at : at + len(response)].tolist(), strict=True):
            ratio = (logp - before).exp()
            term = (ratio - 1 - ratio.log()).clamp(max=10)
            if divergence == "js":
                term = ratio * ratio.log() - (ratio + 1) * ((ratio + 1) / 2).log()
            loss = loss + 0.7 * scale[normalise] * term
        at += len(response)
    expected = torch.autograd.grad(loss, [*trainer.policy.weights.values()])
    assert any(gradient.any() for gradient in expected)
    for micro in (10**6, 40):
        trainer.policy.micro = micro
        assert trainer.add_base_gradient(base, 2, minibatch) == pytest.approx(loss.item(), rel=1e-3)
        for weight, gradient in zip(trainer.policy.weights.values(), expected, strict=True):
            assert weight.grad is not None
            torch.testing.assert_close(weight.grad, gradient, rtol=1e-2, atol=1e-2 * gradient.abs().max().item())
            weight.grad = None


@pytest.mark.parametrize("log_ratio", [-99, -20, -3, 0, 2.4, 5, 99])
def test_base_term_far_from_the_model_before_training(log_ratio: float) -> None:
    """In closed form, with a finite gradient; that of forward ends where the term reaches 10."""
    of_base_T = torch.tensor([-0.5], dtype=torch.float64)
    for divergence in ("forward", "js"):
        logp_T = (of_base_T + log_ratio).requires_grad_()
        loss = method(f"dph_rl(divergence={divergence},coefficient=2)").base_loss(logp_T, of_base_T, torch.ones(1))
        loss.backward()
        x = max(-80.0, min(log_ratio, 80.0))
        expected, slope = min(math.expm1(x) - x, 10), math.expm1(x) if abs(math.expm1(x) - x) <= 10 else 0
        if divergence == "js":
            log_mean = math.log1p(math.exp(x)) - math.log(2)
            expected, slope = math.exp(x) * (x - log_mean) - log_mean, math.exp(x) * (x - log_mean)
        assert loss.item() == pytest.approx(2 * expected, rel=1e-9, abs=1e-12)
        assert known(logp_T.grad).item() == pytest.approx(2 * slope * (x == log_ratio), rel=1e-9, abs=1e-12)


def test_train_step_with_base_responses(tmp_path: Path) -> None:
    trained, losses = {}, []
    for spec in ("grpo", "dph_rl(coefficient=0)", "dph_rl(coefficient=9)"):
        trainer = build(tmp_path, spec, *SETTINGS)
        losses.append([trainer.train_step(step, Stopwatch()).get("loss/base", nan) for step in (1, 2)])
        trained[spec] = weights(trainer)
    plain, weightless, weighty = trained.values()
    assert same(plain, weightless)
    assert not same(plain, weighty)
    assert all(map(math.isnan, losses[0]))
    assert losses[1] == [0, 0]
    assert min(losses[2]) > 0


def test_resumed_with_base_responses(tmp_path: Path) -> None:
    check_resumed(tmp_path, "grpo+dph_rl(coefficient=9)", *SETTINGS, killed_at=1)


def step_on_rank(rank: int, folder: Path) -> tuple[dict[str, float], list[torch.Tensor]]:
    with mock.patch.object(Countdown, "problems", few_problems):
        trainer = build(folder / str(rank), "dph_rl(coefficient=9)", *SETTINGS, "hardware.ranks=2")
        record = trainer.train_step(1, Stopwatch())
    return record, [ranks.whole_weight(weight).detach() for weight in trainer.policy.weights.values()]


@pytest.mark.processes
def test_train_step_with_base_responses_on_two_ranks(tmp_path: Path) -> None:
    trainer = build(tmp_path / "alone", "dph_rl(coefficient=9)", *SETTINGS)
    record = trainer.train_step(1, Stopwatch())
    alone = torch.cat([weight.detach().flatten() for weight in trainer.policy.weights.values()])
    for theirs, of_two in on_ranks(step_on_rank, tmp_path):
        assert theirs["loss/base"] == pytest.approx(record["loss/base"], rel=1e-3)
        together = torch.cat([weight.flatten() for weight in of_two])
        # Adam makes steps of the learning rate, 1e-3, out of the few gradients that are nothing but rounding.
        assert torch.isclose(together, alone, rtol=1e-4, atol=1e-5).double().mean() > 0.99
