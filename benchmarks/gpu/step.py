"""Training steps of language models at their true sizes: peak memory beside `plan`'s, tokens a second, utilization.

    python -m benchmarks.gpu.step [PROFILE [CASE ...]]

The file PROFILE gets the kernels of a micro-batch of the first case; CASE is the number of one of CASES, 0 ...

Weights are random. Lengths of responses are like those of real models (benchmarks/padding.py). The operations that
count are two for each weight and token forward and four backward, and those of attention; recomputed layers count once,
so the utilization is the model's (MFU).
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.common import show
from benchmarks.gpu.common import DEVICE, SMALL, device_name, random_model, wait
from benchmarks.padding import random_groups
from harness import config
from harness.base.shape import Shape
from harness.methods import batch as batches
from harness.methods.batch import TokenBatch
from harness.plan import cost
from harness.rollout import models
from harness.train.policy import Policy

PEAK = 989e12  # operations a second of an H100 or H200 in bfloat16, dense, by its data sheet
PROMPTS, MEDIAN, LIMIT = (4, 1000, 3072) if DEVICE == "cuda" else (2, 30, 100)
MICRO = "hardware.micro_tokens=8192"
NEVER = 10**9  # tokens of a sequence from which it is packed


@dataclass(frozen=True)
class Case:
    model: str
    about: str
    settings: Sequence[str] = ()
    long: int = batches.LONG

    @property
    def name(self) -> str:
        return f"{self.model}, {self.about}"


RECOMPUTE = "hardware.recompute=true"
CASES = [  # those that tell the most first: a time limit may cut off the others
    Case("qwen2.5-0.5b-instruct", "activations kept"),
    Case("qwen2.5-1.5b-instruct", "activations kept"),
    Case("qwen2.5-1.5b-instruct", "recomputed", [RECOMPUTE]),
    Case("qwen2.5-1.5b-instruct", "recomputed, norms and MLPs compiled", [RECOMPUTE, "hardware.compile=true"]),
    Case("qwen2.5-1.5b-instruct", "recomputed, adapters of rank 16", [RECOMPUTE, "train.lora.rank=16"]),
    Case("qwen2.5-1.5b-instruct", "recomputed, padded", [RECOMPUTE], long=NEVER),
    Case("qwen3-4b-base", "recomputed", [RECOMPUTE]),
    Case("qwen3-4b-base", "recomputed, norms and MLPs compiled", [RECOMPUTE, "hardware.compile=true"]),
    Case("qwen2.5-1.5b-instruct", "recomputed, moments in 8 bits", [RECOMPUTE, "train.optimizer=adamw8bit"]),
    Case("qwen2.5-1.5b-instruct", "recomputed, moments on the CPU", [RECOMPUTE, "hardware.offload=true"]),
]


def operations(shape: Shape, sizes: list[int]) -> float:
    """Return the operations of a forward pass over sequences."""
    products = 2 * (shape.parameters - (0 if shape.tied else shape.embedding)) * sum(sizes)
    attention = sum(4 * shape.layers * shape.queries * size**2 / 2 for size in sizes)
    return products + attention


def timed(call: Callable[[], object]) -> float:
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def update(policy: Policy, batch: TokenBatch) -> None:
    """Forward and backward passes over a batch, with the loss of GRPO at a ratio of 1."""
    for part in policy.micro_batches(batch):
        advantages_T = part.rewards_B[part.sequence_T] - 0.5
        policy.backward(-(policy.current(part, frozenset()).logp * advantages_T).mean())


def measure(case: Case, shape: Shape, folder: Path, profile: str) -> list[str]:
    """Return the table's row of a case; write a profile to a file with this name, if there is one."""
    sizes = [f"rollout.max_new_tokens={LIMIT}", "rollout.max_prompt_tokens=300", f"train.prompts={PROMPTS}"]
    common = ["train.group=16", "train.updates=1", "train.dtype=bfloat16", f"hardware.device={DEVICE}", MICRO]
    settings = config.load_config("standard", [*sizes, *common, *case.settings])
    groups = random_groups(MEDIAN, LIMIT, PROMPTS)
    rewards = [float(number % 2) for number in range(PROMPTS * len(groups[0]))]
    batch = TokenBatch.of(groups, rewards, LIMIT, DEVICE)
    policy = Policy(folder, settings.train, 1.0, DEVICE, torch.bfloat16, settings.hardware)
    for step in range(2):  # the first one also compiles and allocates
        if step == 1 and DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = [
            timed(lambda: policy.stats(batch)),
            timed(lambda: update(policy, batch)),
            timed(lambda: policy.step(1)),
        ]
    peak = torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0
    if profile:
        part = policy.micro_batches(batch)[0]
        passes = {"pass before": lambda: policy.stats(part), "update": lambda: update(policy, part)}
        tables = [f"{case.name}: {name}\n{profile_of(call)}\n" for name, call in passes.items()]
        Path(profile).write_text("\n".join(tables))
    memory = cost.memory_estimate(shape, settings, frozenset(), 2, cost.EMBEDDED)
    planned = (sum(memory.training.values()) - memory.training["engine"]) / 2**30
    work, whole = operations(shape, batch.sizes), sum(seconds)
    return [
        case.name,
        f"{peak:.1f}",
        f"{planned:.1f}",
        *(f"{each:.2f}" for each in seconds),
        f"{sum(batch.sizes) / whole:,.0f}",
        f"{3 * work / seconds[1] / PEAK:.1%}",
        f"{4 * work / whole / PEAK:.1%}",
    ]


def profile_of(call: Callable[[], object]) -> str:
    """Return the kernels that take the most time in a call."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        call()
        wait()
    order = "self_device_time_total" if DEVICE == "cuda" else "self_cpu_time_total"
    return profiler.key_averages().table(sort_by=order, row_limit=30, max_name_column_width=80)


def main(profile: str = "", *numbers: str) -> None:
    columns = ["", "peak, GiB", "plan, GiB", "pass before, s", "update, s", "optimizer, s", "tokens/s"]
    columns += ["MFU of the update", "MFU"]
    rows = []
    chosen = [CASES[int(number)] for number in numbers] or CASES
    for model, cases in itertools.groupby(chosen, key=lambda case: case.model):
        shape = models.resolve(model).shape() if DEVICE == "cuda" else SMALL
        assert shape is not None
        with random_model(shape) as place:
            for case in cases:
                with patch.object(batches, "LONG", case.long):
                    try:
                        row = measure(case, shape, place, profile if case is chosen[0] else "")
                    except torch.OutOfMemoryError as error:
                        row = [case.name, *["out of memory"] * (len(columns) - 1)]
                        print(str(error).splitlines()[0])
                rows.append(row)
                print(" | ".join(row), flush=True)  # a time limit may come before the table
                gc.collect()
                torch.cuda.empty_cache()
    show(f"A training step on {device_name()}, {PROMPTS} prompts x 16 responses", columns, rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
