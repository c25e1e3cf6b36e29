"""A short cell of the embedded task as a Trainer in this process, and the comparison of two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from harness import config
from harness.matrix import Cell
from harness.methods.batch import Rollout
from harness.tokens.metrics import Stopwatch
from harness.train import parts
from harness.train.trainer import Trainer
from harness.verify.pool import VerifierPool
from tasks import Problem

SHORT = [
    "hardware.device=cpu",  # also on a machine with a GPU
    "train.steps=4",
    "train.prompts=8",
    "train.updates=2",
    "train.group=8",
    "train.warmup_steps=0",
    "train.lr=1e-3",
    "checkpoint.every=2",
]
SHORT += ["eval.problems=8", "eval.samples=4", "eval.k=2", "eval.every=0"]


def build(folder: Path, method: str = "grpo", *overrides: str) -> Trainer:
    torch.set_num_threads(1)
    settings = config.load_config("demo", [*SHORT, "models=[countdown-tiny]", *overrides])
    planned = Cell.of(settings, method, "countdown", "countdown-tiny", seed=0)
    trainer = Trainer(parts.build_parts(planned.spec, VerifierPool()), folder)  # Countdown does not use it
    trainer.engine.load(trainer.policy.module)
    return trainer


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
