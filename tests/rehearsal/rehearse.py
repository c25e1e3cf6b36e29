"""Cells on the device that pretends to be a GPU, whole ones and some with a planted defect.

    python tests/rehearsal/rehearse.py OUTCOMES

writes how each of them ended: "passed", or its error.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from trainers import build, same, weights

from harness import ranks
from harness.methods.batch import TokenBatch
from harness.rollout import embedded
from harness.tokens import statistics
from harness.tokens.head import Head
from harness.tokens.metrics import Stopwatch
from harness.train import packing, trainer
from harness.train.policy import Learner
from tests.rehearsal import device

SETTINGS = ["hardware.device=cuda", "train.prompts=4", "train.group=4", "eval.problems=2", "rollout.max_new_tokens=6"]


@dataclass(frozen=True)
class Cell:
    method: str = "grpo"
    settings: Sequence[str] = ()
    packed: bool = True
    backend: str = "dense"  # of the token statistics


CELLS = {
    "GRPO": Cell(),
    "padded rows": Cell(packed=False),
    "PPO, recomputed, statistics by blocks": Cell("ppo", ["hardware.recompute=true"], backend="torch"),
    "Clip_B, moments on the CPU, entropy by blocks": Cell(
        "clip_b+entropy_bonus", ["hardware.offload=true"], backend="torch"
    ),
    "KL-Cov in float32, temperature 0.7": Cell("kl_cov", ["train.dtype=float32", "rollout.temperature=0.7"]),
}


def rehearse(cell: Cell, folder: Path) -> None:
    """Train a step, save it, and resume in a second trainer, which trains another step and evaluates."""
    settings = [*SETTINGS, *cell.settings]
    offload, short = "hardware.offload=true" in settings, "train.dtype=float32" not in settings
    device.CALLED.clear()
    with (
        mock.patch("harness.methods.batch.LONG", 0 if cell.packed else 10**6),
        mock.patch.object(statistics, "SMALL", 10**6 if cell.backend == "dense" else 0),
    ):
        first = build(folder, cell.method, *settings)
        first.train_step(1, Stopwatch())
        first.done_steps = 1
        first.save()
        first.checkpoints.written(wait=True)
        second = build(folder, cell.method, *settings)
        second.resume()
        assert same(weights(second), weights(first))
        second.synchronise(1)
        second.train_step(2, Stopwatch())
        second.evaluate(2)
    assert {(x.device.type, x.dtype) for x in weights(second)} == {("cuda", torch.float32)}
    moments = [x for state in second.policy.optimizer.state.values() for x in state.values()]
    assert {x.device.type for x in moments} == {"cpu" if offload else "cuda"}, "moments are elsewhere"
    assert (device.PACKED in device.CALLED) == (cell.packed and short), "attention of packed rows ran elsewhere"


# Planted defects

Plant = Callable[[], AbstractContextManager[object]]


def instead(owner: object, name: str, value: object) -> Plant:
    return lambda: mock.patch.object(owner, name, value)


def kernel_with(change: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., object]:
    """Return the kernel of packed rows for other queries and ends of sequences."""

    def changed(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, _: Tensor, *rest: int, **named: Any) -> object:
        query, ends = change(query, ends)
        return varlen_attn(query, key, value, ends, ends, *rest, **named)

    return changed


def batch_on_cpu(groups: Any, rewards: Any, budget: int, _: str, **rest: Any) -> TokenBatch:
    return batch_of(groups, rewards, budget, "cpu", **rest)


def uniforms_there(seed: int, n: int, length: int) -> Tensor:
    return torch.rand(n, length, device="cuda", generator=torch.Generator().manual_seed(seed))


varlen_attn, batch_of = packing.varlen_attn, TokenBatch.of


@dataclass(frozen=True)
class Defect:
    plant: Plant
    words: str  # of the error that ends the cell
    cell: str = "GRPO"


DEFECTS = {
    "the whole batch stays on the CPU": Defect(instead(TokenBatch, "of", batch_on_cpu), "tensors on cuda and on cpu"),
    "the engine draws with a generator of the CPU": Defect(
        instead(embedded, "uniforms", uniforms_there), "the generator is on cpu"
    ),
    "queries of packed attention are in float32": Defect(
        instead(packing, "varlen_attn", kernel_with(lambda query, ends: (query.float(), ends))), "packed attention of"
    ),
    "ends of sequences are in int64": Defect(
        instead(packing, "varlen_attn", kernel_with(lambda query, ends: (query, ends.long()))), "ends in torch.int64"
    ),
    "autocast is off": Defect(
        instead(Learner, "autocast", lambda learner: nullcontext()), "attention of packed rows ran elsewhere"
    ),
    "the head is not cast": Defect(
        instead(statistics, "Head", lambda weight, bias, softcap: Head(weight.float(), bias, softcap)),
        "mm of",
        "PPO, recomputed, statistics by blocks",
    ),
    "numpy() of a tensor of the device": Defect(
        instead(trainer.invariants, "check_statistics", lambda old, _: old.logp.numpy()), "numpy() is not supported"
    ),
    "a product of integers": Defect(
        instead(trainer.invariants, "check_statistics", lambda old, _: old.logp.long() @ old.logp.long()),
        "CUDA has no product of torch.int64",
    ),
    "offloaded moments are on the device": Defect(
        instead(ranks, "on_cpu", lambda weight: weight.detach().clone()),
        "moments are elsewhere",
        "Clip_B, moments on the CPU, entropy by blocks",
    ),
}


def outcome(cell: Cell, plant: Plant = nullcontext) -> str:
    with tempfile.TemporaryDirectory() as folder, plant():
        try:
            rehearse(cell, Path(folder))
        except Exception as error:  # of any class, since a defect may break anything
            return f"{type(error).__name__}: {error}"
    return "passed"


def main(path: str) -> None:
    device.pretend()
    cells = {name: outcome(cell) for name, cell in CELLS.items()}
    defects = {}
    for name, defect in DEFECTS.items():
        defects[name] = [outcome(CELLS[defect.cell], defect.plant), defect.words]
    Path(path).write_text(json.dumps({"cells": cells, "defects": defects}))


if __name__ == "__main__":
    main(sys.argv[1])
