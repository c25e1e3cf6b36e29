"""Memory and CPU seconds of loading models and writing checkpoints, by model size and number of ranks."""

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
from benchmarks.memory import forget_peak, memory_mib
from harness import ranks
from harness.config import Hardware, Train
from harness.train import weights
from harness.train.checkpoint import Checkpoints
from harness.train.policy import Policy

# Vocabulary, width and layers of models, by millions of parameters.
SHAPES = {
    1: (8192, 96, 2),
    5: (16384, 192, 4),
    50: (32768, 512, 9),
    200: (65536, 1024, 10),
}
MIB = 2**20


def write_random_model(millions: int, folder: Path) -> None:
    """Write a random model of this size in bfloat16."""
    vocabulary, hidden, layers = SHAPES[millions]
    heads = {"num_attention_heads": hidden // 32, "num_key_value_heads": hidden // 32}
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        tie_word_embeddings=True, **heads,
    )  # fmt: skip
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


@contextmanager
def one_rank(rank: int, count: int, results: dict[str, float], file: Path) -> Iterator[None]:
    """Join `count` ranks of one thread each; at the end the first one writes its results to the file."""
    torch.set_num_threads(1)
    if count > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{file}.meeting", rank=rank, world_size=count)
    yield
    if rank == 0:
        file.write_text(json.dumps(results))
    if ranks.several():
        dist.destroy_process_group()


def measure(rank: int, count: int, way: str, folder: Path) -> None:
    """Measure one rank. In the way `whole`, each rank reads the whole model before it is divided."""
    results: dict[str, float] = {}
    with one_rank(rank, count, results, result_file(folder, count, way)):
        load_and_save(results, way, folder / f"checkpoints-{count}", folder / "model")


def result_file(folder: Path, count: int, way: str) -> Path:
    return folder / f"results-{count}-{way}.json"


def load_and_save(results: dict[str, float], way: str, checkpoint_folder: Path, model: Path) -> None:
    """Load a model, and in the way `parts` also save and restore a checkpoint of it."""
    before = forget_peak()
    # Without stored weights, a policy falls back to transformers' loading of the whole model.
    stored = (lambda *_: {}) if way == "whole" else weights.stored
    with mock.patch.object(weights, "stored", stored):
        policy = Policy(model, Train(), 1.0, "cpu", torch.float32, Hardware())
    results["parameters"] = sum(x.numel() for x in policy.weights.values())
    results["loading"] = memory_mib("VmHWM") - before
    if way == "whole":
        return
    # One update, since a checkpoint holds AdamW's moments, too.
    for weight in policy.weights.values():
        weight.grad = torch.ones_like(weight)
    policy.apply(1e-6)
    checkpoints, before = Checkpoints(checkpoint_folder, "benchmark"), forget_peak()
    start, start_of_thread = time.process_time(), time.thread_time()
    checkpoints.save(1, policy.state(), {})
    # Training waits for the copy only: a second thread writes it.
    results["copy"] = time.thread_time() - start_of_thread
    checkpoints.written(wait=True)
    results["write"] = time.process_time() - start - results["copy"]
    results["memory"] = memory_mib("VmHWM") - before
    start = time.process_time()
    saved = checkpoints.latest()
    assert saved is not None
    policy.load_state(saved.names, partial(weights.fill, folder=saved.path))
    results["read"] = time.process_time() - start
    results["size"] = sum(file.stat().st_size for file in saved.path.iterdir()) / MIB


def main(*sizes: int) -> None:
    rows = []
    for millions in sizes or SHAPES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_random_model(millions, folder / "model")
            for count in (1, 2):
                for way in ("whole", "parts"):
                    spawn(measure, args=(count, way, folder), nprocs=count)
                whole = json.loads(result_file(folder, count, "whole").read_text())
                parts = json.loads(result_file(folder, count, "parts").read_text())
                row = [f"{parts['parameters'] / 1e6:.1f} M", str(count)]
                row += [f"{whole['loading']:.0f}", f"{parts['loading']:.0f}"]
                row += [f"{parts['size']:.0f}", f"{parts['memory']:.0f}"]
                row += [f"{parts[key]:.2f}" for key in ("copy", "write", "read")]
                rows.append(row)
    columns = ["parameters", "ranks", "whole, MiB", "parts, MiB", "checkpoint, MiB", "its memory, MiB"]
    columns += ["copy, CPU s", "write, CPU s", "read, CPU s"]
    show("Loading and checkpoints: memory that is added, and CPU seconds, of the first rank", columns, rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
