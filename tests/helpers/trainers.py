"""A short cell of the embedded task as a Trainer in this process: killed and resumed, and compared with another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from mortal import Killed

from harness import config
from harness.matrix import Cell
from harness.methods.batch import Rollout
from harness.tokens.metrics import Stopwatch
from harness.train import parts
from harness.train.trainer import Trainer
from harness.verify.pool import VerifierPool
from tasks import Problem

SHORT = ["train.steps=4", "train.prompts=8", "train.updates=2", "train.group=8", "train.warmup_steps=0"]
SHORT += ["train.lr=1e-3", "checkpoint.every=2", "hardware.device=cpu"]  # also on a machine with a GPU
SHORT += ["eval.problems=8", "eval.samples=4", "eval.k=2", "eval.every=0"]


def planned(*overrides: str, method: str = "grpo", model: str = "countdown-tiny") -> Cell:
    settings = config.load_config("demo", [f"models=[{model}]", *overrides])
    return Cell.of(settings, method, "countdown", model, seed=0)


def build(folder: Path, method: str = "grpo", *overrides: str) -> Trainer:
    torch.set_num_threads(1)
    spec = planned(*SHORT, *overrides, method=method).spec
    trainer = Trainer(parts.build_parts(spec, VerifierPool()), folder)  # Countdown does not use it
    trainer.engine.load(trainer.policy.module)
    return trainer


def trained(folder: Path, method: str, *overrides: str) -> Trainer:
    """Return a trainer after all of its steps."""
    trainer = build(folder, method, *overrides)
    trainer.run(lambda step: None)
    return trainer


def train_until_killed(folder: Path, method: str, *overrides: str, at: int) -> None:
    """Train until a checkpoint has this step, and end as by SIGKILL."""

    def kill(step: int) -> None:
        if step == at:
            raise Killed

    with pytest.raises(Killed):
        build(folder, method, *overrides).run(kill)


def check_resumed(folder: Path, method: str, *overrides: str, killed_at: int) -> Trainer:
    """Check that a killed and resumed run has all bits of an uninterrupted one; return the trainer of the latter."""
    whole = trained(folder / "whole", method, *overrides)
    train_until_killed(folder / "killed", method, *overrides, at=killed_at)
    again, durable = build(folder / "killed", method, *overrides), list[int]()
    again.run(durable.append)
    assert durable == list(range(killed_at, whole.config.train.steps + 1, whole.config.checkpoint.every))
    assert records(folder / "killed") == records(folder / "whole")
    assert same(weights(again), weights(whole))
    return whole


def sample_in_turn(trainer: Trainer) -> None:
    """Let a trainer sample for a later step before it trains, not meanwhile."""
    collector = trainer.collector

    def begin(step: int, watch: Stopwatch) -> None:
        collector.in_flight[step] = collector.sample(step, watch, lag=trainer.config.rollout.lag)

    collector.begin = begin  # type: ignore[method-assign]


def asked(trainer: Trainer, step: int) -> list[Problem]:
    """Return the problems of a step without resampling."""
    return trainer.collector.problems(step, trainer.collector.slots)


def sampled(trainer: Trainer, step: int) -> list[list[Rollout]]:
    """Return the groups of a step, sampled by the engine's present policy."""
    return trainer.collector.sample(step, Stopwatch()).groups


def records(folder: Path) -> list[dict[str, Any]]:
    """Return all logged metrics, without those that depend on a clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {"step": line["step"], **{k: v for k, v in line["metrics"].items() if not k.startswith("time/")}}
        for line in lines
    ]


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for learner in trainer.learners().values() for p in learner.module.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
