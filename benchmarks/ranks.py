"""CPU seconds and peak memory of a rank for the passes and the update of a step, by model size and number of ranks.

`python -m benchmarks.ranks 1 5` measures models of 1 and 5 M parameters.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.multiprocessing import spawn

from benchmarks.checkpoints import SHAPES, one_rank, write_random_model
from benchmarks.common import show
from benchmarks.memory import forget_peak, memory_mib
from harness import ranks
from harness.config import Hardware, Train
from harness.methods.batch import Rollout, TokenBatch
from harness.train.policy import Policy

GROUPS, SIZE, PROMPT, RESPONSE = 6, 4, 50, 100  # of the step, shared evenly
NEEDS: frozenset[str] = frozenset()


def rollouts(vocabulary: int) -> list[list[Rollout]]:
    """Return the groups of this rank, a share of the groups of one process."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=generator).tolist()

    groups = []
    for _ in range(GROUPS):
        prompt = tokens(PROMPT)
        groups.append([Rollout(prompt, tokens(RESPONSE), [-1.0] * RESPONSE, True) for _ in range(SIZE)])
    return groups[ranks.own_rank() :: ranks.count()]


def measure(rank: int, count: int, folder: Path) -> None:
    """Measure one rank."""
    results: dict[str, float] = {}
    with one_rank(rank, count, results, folder / f"results-{count}.json"):
        second_step(results, folder / "model")


def second_step(results: dict[str, float], model: Path) -> None:
    """Measure the second of two steps: the first one allocates AdamW's moments."""
    policy = Policy(model, Train(), 1.0, "cpu", torch.float32, Hardware(micro_tokens=1024))
    groups = rollouts(policy.module.config.vocab_size)
    batch = TokenBatch.of(groups, [0.0, 1.0] * (len(groups) * SIZE // 2), RESPONSE, "cpu")
    for _ in range(2):
        before, start = forget_peak(), time.process_time()
        policy.stats(batch)
        for part in policy.micro_batches(batch):
            policy.backward(-policy.current(part, NEEDS).logp.sum() / batch.global_tokens())
        policy.apply(1e-6)
        seconds, peak = time.process_time() - start, memory_mib("VmHWM")
        results |= {"seconds": seconds, "peak": peak, "more": peak - before}
    results["parameters"] = sum(x.numel() for x in policy.weights.values())


def main(*sizes: int) -> None:
    rows = []
    for millions in sizes or SHAPES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_random_model(millions, folder / "model")
            for count in (1, 2, 3):
                spawn(measure, args=(count, folder), nprocs=count)
            results = [json.loads((folder / f"results-{count}.json").read_text()) for count in (1, 2, 3)]
        for count, result in enumerate(results, 1):
            rows.append(
                [
                    f"{result['parameters'] / 1e6:.1f} M",
                    str(count),
                    f"{result['seconds']:.2f}",
                    f"{result['seconds'] / results[0]['seconds']:.2f}",
                    f"{result['peak']:.0f}",
                    f"{result['more']:.0f}",
                ]
            )
    columns = ["parameters", "ranks", "CPU s of a rank", "of one process", "peak, MiB", "of it in the step"]
    show(f"A step of {GROUPS * SIZE} responses of {PROMPT} + {RESPONSE} tokens, gloo, one thread a rank", columns, rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
