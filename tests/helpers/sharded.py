"""Two ranks that share the weights of a model, with an engine on each: loads, samples, and faults that are caught.

Engines differ in how they are started, and in how a load fails.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from tiny import build
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from harness import ranks
from harness.base.errors import CellFailure
from harness.methods.batch import Rollout
from harness.rollout.proof import WIDTH, check_engine_weights
from harness.rollout.protocol import Engine

STALE = "model.layers.1."  # the weights that a partial load leaves unchanged
PROMPTS = [[1, 2], [4, 5, 6, 7, 1, 11], [9], [1, 2], [8, 2, 6, 18, 1, 5, 5, 12]]
SEEDS = [11, 12, 13, 14, 15]
SHARES: tuple[tuple[list[int], list[int]], ...] = (  # of the prompts, for each rank
    ([0, 1], [2, 3, 4]),
    ([0, 1, 2, 3, 4], []),
    ([], [0]),
)

Groups = list[list[Rollout]]
# A load in its context goes through all that the ranks do together, and leaves in this engine what these names begin.
E = TypeVar("E", bound=Engine)
Leaving = Callable[[E, str, dict[str, Tensor]], AbstractContextManager[object]]


def start(rank: int, folder: Path) -> None:
    """Start a rank as the process of a cell and the trainer do."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo")
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2, timeout=timedelta(seconds=120))


def shard(model: PreTrainedModel) -> PreTrainedModel:
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


@torch.no_grad()
def leave_gathered(model: PreTrainedModel) -> None:
    """Leave gathered copies of the root's parameters, as after any forward pass; later updates do not reach them."""
    model(input_ids=torch.tensor([[1, 2, 3]]))
    assert not isinstance(model.lm_head.weight, DTensor)


@torch.no_grad()
def change(parameters: dict[str, Tensor]) -> None:
    """Multiply each parameter by its own factor: shards and whole tensors get the same bits."""
    for number, weight in enumerate(parameters.values()):
        weight.mul_(1 + 0.01 * (number + 1))


def changed(name: str) -> PreTrainedModel:
    """Return the model that the ranks share when they sample, in one process."""
    model = build(name, scale=0.1)
    change(dict(model.named_parameters()))
    return model


def sample(engine: Engine, share: Sequence[int]) -> Groups:
    seeds = [SEEDS[i] for i in share]
    return engine.generate([PROMPTS[i] for i in share], 3, seeds=seeds, temperature=0.8, max_new_tokens=12)


@dataclass
class Gathered:
    """The sizes of gathered tensors, and the largest number of them alive at a time."""

    sizes: list[int] = field(default_factory=list)
    most: int = 0
    alive: weakref.WeakSet[Tensor] = field(default_factory=weakref.WeakSet)

    def counting(self) -> AbstractContextManager[object]:
        gather = ranks.whole_weight

        def whole(weight: Tensor) -> Tensor:
            assert isinstance(weight, DTensor)
            gathered = gather(weight)
            self.alive.add(gathered)
            self.most = max(self.most, len(self.alive))
            self.sizes.append(gathered.numel())
            return gathered

        return mock.patch.object(ranks, "whole_weight", whole)


def outcomes(engine: Engine, model: PreTrainedModel, dtype: torch.dtype) -> list[str]:
    """Return the outcomes of the proof, with other columns each time."""
    result = []
    for seed in range(3):
        try:
            check_engine_weights(engine, model, dtype, seed)
            result.append("sound")
        except CellFailure as failure:
            result.append(str(failure))
    return result


def work(engine: E, name: str, dtype: torch.dtype, rank: int, leaving: Leaving[E]) -> dict[str, Any]:
    """Return a rank's view of its engine while the weights change. It has 42 or 41 of the vocabulary's 83 rows."""
    model = shard(build(name, scale=0.1))
    shards = dict(model.named_parameters())  # which an optimiser holds
    engine.load(model)
    seen: dict[str, Any] = {"at first": outcomes(engine, model, dtype)}

    load, proof = Gathered(), Gathered()
    leave_gathered(model)
    change(shards)
    with load.counting():
        engine.load(model)
    leave_gathered(model)
    with proof.counting():
        seen["after an update"] = outcomes(engine, model, dtype)
    seen |= {"gathered": load.sizes, "most alive": load.most, "left": len(load.alive), "compared": proof.sizes}

    seen["groups"] = []
    for shares in SHARES:
        for turn in range(2):  # the other rank waits elsewhere: an engine that needed it would wait for ever
            if turn == rank:
                seen["groups"].append(sample(engine, shares[rank]))
            dist.barrier()

    old = {key: ranks.whole_weight(weight) for key, weight in model.state_dict().items()}
    for fault, names in (("absent on rank 1", ""), ("partial on rank 1", STALE)):
        change(shards)
        with leaving(engine, names, old) if rank == 1 else contextlib.nullcontext():
            engine.load(model)
        seen[fault] = outcomes(engine, model, dtype)
    sent = {key: weight.clone() if rank == 1 and STALE in key else weight for key, weight in model.state_dict().items()}
    change(shards)
    with mock.patch.object(model, "state_dict", return_value=sent):
        engine.load(model)
    seen["rank 1 sent what it had"] = outcomes(engine, model, dtype)
    engine.load(model)
    seen["at last"] = outcomes(engine, model, dtype)
    return seen


def check(name: str, seen: Sequence[dict[str, Any]], alone: Engine, most_alive: int) -> None:
    """Check the results of both ranks; `alone` is an engine in one process, with the weights of `changed`."""
    model = build(name, scale=0.1)
    for moment in ("at first", "after an update", "at last"):
        assert [rank[moment] for rank in seen] == [["sound"] * 3] * 2
    for fault, words in (("absent on rank 1", "the load was skipped, or"), ("partial on rank 1", STALE)):
        assert seen[0][fault] == ["sound"] * 3
        assert all(words in outcome for outcome in seen[1][fault])
    parts = sum(STALE in key for key, _ in model.named_parameters())
    for rank in seen:
        assert all(outcome.startswith(f"{parts} of ") for outcome in rank["rank 1 sent what it had"])
    assert all(outcome.startswith(f"{parts} of ") for outcome in seen[1]["partial on rank 1"])

    assert seen[0]["gathered"] == seen[1]["gathered"], "in the same order"
    assert sorted(seen[0]["gathered"]) == sorted(weight.numel() for weight in model.parameters())
    compared = [
        weight.numel() if weight.dim() == 1 else weight.shape[0] * WIDTH
        for _, weight in model.named_parameters(remove_duplicate=False)
    ]
    for rank in seen:
        assert rank["most alive"] <= most_alive
        assert rank["left"] == 0
        assert rank["compared"] == compared * 3

    for number, share in ((rank, shares[rank]) for shares in SHARES for rank in range(2)):
        for group, expected in zip(seen[number]["groups"].pop(0), sample(alone, share), strict=True):
            assert [rollout.response for rollout in group] == [rollout.response for rollout in expected]
            for ours, theirs in zip(group, expected, strict=True):
                assert ours.logp == pytest.approx(theirs.logp, abs=1e-5)
