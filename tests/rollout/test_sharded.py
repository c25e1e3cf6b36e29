"""The embedded engine and the proof over two ranks that share the model's weights."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import pytest
import sharded
import torch
import torch.distributed as dist
from companions import start
from torch import Tensor

from harness import ranks
from harness.rollout.embedded import EmbeddedEngine

EOS = 3
CASES = {"qwen2-tied": torch.bfloat16, "qwen3-untied": torch.float32}


def leaving(engine: EmbeddedEngine, names: str, old: dict[str, Tensor]) -> AbstractContextManager[object]:
    fused = engine._fused

    def left(weights: dict[str, Tensor], *parts: str) -> Tensor:
        if not parts[0].startswith(names):
            return fused(weights, *parts)
        for part in parts:
            ranks.whole_weight(weights[part].to(engine.buffers[parts[0]].dtype))
        return engine.buffers[parts[0]]

    return mock.patch.object(engine, "_fused", left)


def sample_on_rank(rank: int, folder: Path) -> None:
    sharded.start(rank, folder)
    seen = {
        name: sharded.work(EmbeddedEngine([EOS], "cpu", dtype), name, dtype, rank, leaving)
        for name, dtype in CASES.items()
    }
    torch.save(seen, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.processes
def test_load_of_sharded_weights(tmp_path: Path) -> None:
    start(sample_on_rank, tmp_path)
    seen = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    for name, dtype in CASES.items():
        alone = EmbeddedEngine([EOS], "cpu", dtype)
        alone.load(sharded.changed(name))
        sharded.check(name, [rank[name] for rank in seen], alone, most_alive=3)  # q, k and v
