"""How models are read and checkpoints written, by model size and number of ranks: memory and CPU seconds of a rank."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import show
from harness.config import Hardware, Train
from harness.dist import ranks
from harness.train import weights
from harness.train.checkpoint import Checkpoints
from harness.train.policy import Policy

SHAPES = {
    1: (8192, 96, 2),
    5: (16384, 192, 4),
    50: (32768, 512, 9),
    200: (65536, 1024, 10),
}  # vocabulary, width, layers
MIB = 2**20


def make(millions: int, folder: Path) -> None:
    vocabulary, hidden, layers = SHAPES[millions]
    heads = {"num_attention_heads": hidden // 32, "num_key_value_heads": hidden // 32}
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        tie_word_embeddings=True, **heads,
    )  # fmt: skip
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def peak() -> float:
    """Returns the most memory that this process has had since `forget`."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def forget() -> float:
    """Lets the peak begin anew at what is used now, and returns that."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


@contextmanager
def measuring(rank: int, count: int, found: dict[str, float], file: Path) -> Iterator[None]:
    """Is one of so many ranks, of one thread each; the first of them writes into the file what it has found."""
    torch.set_num_threads(1)
    if count > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{file}.meeting", rank=rank, world_size=count)
    yield
    if rank == 0:
        file.write_text(json.dumps(found))
    if ranks.several():
        dist.destroy_process_group()


def measure(rank: int, count: int, way: str, folder: Path) -> None:
    """Measures one rank; in the way `whole` each reads all of the model before it is divided."""
    found: dict[str, float] = {}
    with measuring(rank, count, found, folder / f"found-{count}-{way}.json"):
        load_and_save(found, way, folder / f"checkpoints-{count}", folder / "model")


def load_and_save(found: dict[str, float], way: str, kept: Path, model: Path) -> None:
    before = forget()
    with mock.patch.object(weights, "stored", (lambda *_: {}) if way == "whole" else weights.stored):
        policy = Policy(model, Train(), 1.0, "cpu", torch.float32, Hardware())
    found |= {"parameters": sum(x.numel() for x in policy.weights.values()), "loading": peak() - before}
    if way == "parts":
        for weight in policy.weights.values():
            weight.grad = torch.ones_like(weight)
        policy.apply(1e-6)
        checkpoints, before = Checkpoints(kept, "benchmark"), forget()
        start, thread = time.process_time(), time.thread_time()
        checkpoints.save(1, policy.state(), {})
        found["copy"] = time.thread_time() - thread
        checkpoints.written(wait=True)
        found["write"] = time.process_time() - start - found["copy"]
        found["memory"] = peak() - before
        start = time.process_time()
        saved = checkpoints.latest()
        assert saved is not None
        policy.load_state(saved.names, partial(weights.fill, folder=saved.path))
        found["read"] = time.process_time() - start
        found["size"] = sum(file.stat().st_size for file in saved.path.iterdir()) / MIB


def main(*sizes: int) -> None:
    rows = []
    for millions in sizes or SHAPES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make(millions, folder / "model")
            for count in (1, 2):
                for way in ("whole", "parts"):
                    spawn(measure, args=(count, way, folder), nprocs=count)
                whole, found = (
                    json.loads((folder / f"found-{count}-{way}.json").read_text()) for way in ("whole", "parts")
                )
                rows.append(
                    [f"{found['parameters'] / 1e6:.1f} M", str(count)]
                    + [f"{each['loading']:.0f}" for each in (whole, found)]
                    + [f"{found[key]:.0f}" for key in ("size", "memory")]
                    + [f"{found[key]:.2f}" for key in ("copy", "write", "read")]
                )  # fmt: skip
    columns = ["parameters", "ranks", "whole, MiB", "parts, MiB", "checkpoint, MiB", "its memory, MiB"]
    columns += ["copy, CPU s", "write, CPU s", "read, CPU s"]
    show("Loading and checkpoints: memory that is added, and CPU seconds, of the first rank", columns, rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
