"""vLLM on two ranks that share the model's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import pytest
import sharded
import torch
import torch.distributed as dist
from tiny import EOS, build, worst_difference
from torch import Tensor, nn
from torch.multiprocessing import spawn

from harness.rollout import vllm
from harness.rollout.vllm import VllmEngine

MODELS = ("qwen2-tied", "qwen3-untied")


def leaving(engine: VllmEngine, names: str, old: dict[str, Tensor]) -> AbstractContextManager[object]:
    arriving = vllm.stream_weights

    def left(module: nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        for name, weight in arriving(module, dtype):
            yield name, old[name] if name.startswith(names) else weight

    return mock.patch.object(vllm, "stream_weights", left)


def start(folder: Path) -> VllmEngine:
    return VllmEngine(folder, [EOS], "cpu", torch.float32, cache_gib=0.1)


def sample_on_rank(rank: int, folder: Path) -> None:
    sharded.start(rank, folder)
    seen, engines = {}, []
    for name in MODELS:
        engines.append(start(folder / name))
        worker = engines[-1].engine.model_executor.driver_worker.worker
        assert (worker.rank, worker.local_rank) == (rank, rank), "on a GPU, its device"
        seen[name] = sharded.work(engines[-1], name, torch.float32, rank, leaving)
    torch.save(seen, folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_each_rank_samples_from_the_weights_that_all_share_or_the_proof_says_where_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in MODELS:  # weights other than the shared ones
        build(name, seed=1, scale=0.1).save_pretrained(tmp_path / name)
    spawn(sample_on_rank, args=(tmp_path,), nprocs=2)
    assert "Traceback" not in capfd.readouterr().err, "vLLM leaves the process groups to those who made them"
    seen = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    for name in MODELS:
        model = sharded.changed(name)
        for rank in seen:
            assert worst_difference(model, [group for groups in rank[name]["groups"] for group in groups]) < 1e-3
        alone = start(tmp_path / name)
        alone.load(model)
        # Alive: q, k and v with their biases, and the embedding, for whose padding vLLM waits.
        sharded.check(name, [rank[name] for rank in seen], alone, most_alive=7)
        del alone
