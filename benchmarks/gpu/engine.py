"""Rollout engines on a GPU: agreement with the trained model after every update, memory freed by a rest, and speed.

    python -m benchmarks.gpu.engine [updates]

A random Qwen2 model of 0.5 B parameters (tied head) is changed, synchronized and sampled, with a rest before each
synchronization. Log-probabilities of the engine are compared with the trainer's, both in bfloat16. Then it samples
64 responses while the trainer makes an update with 64 others, as with `rollout.lag`. The embedded engine is measured
everywhere, and vLLM where it is installed.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks.common import show
from benchmarks.gpu.common import DEVICE, SMALL, device_name, random_model, used_gib, wait
from benchmarks.gpu.step import timed, update
from harness import config
from harness.base.shape import Shape
from harness.methods.batch import Rollout, TokenBatch
from harness.rollout import choice, models
from harness.rollout.embedded import EmbeddedEngine
from harness.rollout.proof import check_engine_weights
from harness.rollout.protocol import Engine
from harness.train.collect import set_up_sampling
from harness.train.policy import Policy

EOS = 0
GROUP = 8
PROMPT, NEW = (100, 128) if DEVICE == "cuda" else (10, 8)  # tokens
PROMPTS = [[(7 * i + j) % 900 + 1 for i in range(PROMPT)] for j in range(64)]


def sample(engine: Engine, prompts: int) -> tuple[list[list[Rollout]], float]:
    """Return responses, and their tokens per second."""
    start = time.perf_counter()
    seeds = range(prompts)
    groups = engine.generate(PROMPTS[:prompts], GROUP, seeds=seeds, temperature=1.0, max_new_tokens=NEW)
    tokens = sum(len(rollout.response) for group in groups for rollout in group)
    return groups, tokens / (time.perf_counter() - start)


def differences(policy: Policy, groups: list[list[Rollout]]) -> torch.Tensor:
    """Return the differences of log p between the engine and the trainer."""
    batch = TokenBatch.of(groups, [0.0] * (len(groups) * GROUP), NEW, DEVICE)
    return (policy.stats(batch, entropy=False).logp - batch.behaviour_logp_T).abs().double()


def measure(name: str, engine: Engine, policy: Policy, number: int) -> list[str]:
    """Change the model, and return the table's row."""
    with torch.no_grad():
        for weight in policy.module.parameters():
            weight.add_(0.1 * weight.std() * torch.randn_like(weight))
    awake = used_gib()
    engine.rest()
    resting = used_gib()
    wait()
    start = time.perf_counter()
    engine.load(policy.module)
    wait()
    seconds = time.perf_counter() - start
    check_engine_weights(engine, policy.module, torch.bfloat16, number)
    groups, speed = sample(engine, 64)
    again, slower = sample(engine, 8)
    repeated = sum(
        a.response == b.response
        for one, other in zip(groups, again, strict=False)
        for a, b in zip(one, other, strict=True)
    )
    apart_T = differences(policy, groups)
    return [
        name,
        str(number),
        f"{apart_T.mean():.4f} / {apart_T.quantile(0.99):.3f} / {apart_T.max():.3f}",
        f"{repeated} of {8 * GROUP}",
        f"{1000 * seconds:.0f}",
        f"{awake:.1f} / {resting:.1f}",
        f"{slower:,.0f}",
        f"{speed:,.0f}",
    ]


def time_sampling_and_update(engine: Engine, policy: Policy) -> list[float]:
    """Return the seconds of sampling, of an update, and of both at once."""
    groups, _ = sample(engine, 8)
    batch = TokenBatch.of(groups, [0.0, 1.0] * (4 * GROUP), NEW, DEVICE)

    def train() -> None:
        policy.stats(batch)
        update(policy, batch)
        policy.step(1)

    def both() -> None:
        sampled = thread.submit(sample, engine, 8)
        train()
        sampled.result()

    device = torch.cuda.current_device() if DEVICE == "cuda" else None
    with ThreadPoolExecutor(1, "sampling", set_up_sampling, (device,)) as thread:
        train()  # allocates
        return [timed(lambda: thread.submit(sample, engine, 8).result()), timed(train), timed(both)]


def main(updates: int = 2) -> None:
    shape = models.resolve("qwen2.5-0.5b-instruct").shape() if DEVICE == "cuda" else SMALL
    assert isinstance(shape, Shape)
    settings = config.load_config("standard", ["train.dtype=bfloat16", f"hardware.device={DEVICE}"])
    rows, seconds = [], []
    with random_model(shape) as folder:
        policy = Policy(folder, settings.train, 1.0, DEVICE, torch.bfloat16, settings.hardware)
        engines: dict[str, Engine] = {"embedded": EmbeddedEngine([EOS], DEVICE, torch.bfloat16)}
        if choice.installed_vllm() is not None:
            from harness.rollout.vllm import VllmEngine

            engines["vLLM"] = VllmEngine(Path(folder), [EOS], DEVICE, torch.bfloat16)
        for name, engine in engines.items():
            sample_once(engine, policy)
            for number in range(updates):
                rows.append(measure(name, engine, policy, number))
                print(" | ".join(rows[-1]), flush=True)  # a time limit may come before the table
            seconds.append([name, *(f"{each:.2f}" for each in time_sampling_and_update(engine, policy))])
    columns = ["engine", "update", "|log p - trainer's|, mean / p99 / max", "repeated", "load, ms"]
    columns += ["GiB awake / resting", "tokens/s, 64 sequences", "tokens/s, 512"]
    show(f"Rollout engines on {device_name()}", columns, rows)
    show("Seconds of one after the other, and at once", ["engine", "sampling", "update", "both at once"], seconds)


def sample_once(engine: Engine, policy: Policy) -> None:
    """Load and sample, so that what happens once is not measured."""
    engine.load(policy.module)
    sample(engine, 8)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
