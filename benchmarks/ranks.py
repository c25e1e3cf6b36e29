"""The passes and the update of a step by model size and number of ranks: CPU seconds and peak memory of a rank.

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

from benchmarks.checkpoints import SHAPES, forget, make, measuring, peak
from benchmarks.common import show
from harness.batch import Rollout, TokenBatch
from harness.config import Hardware, Train
from harness.dist import ranks
from harness.train.policy import Policy

GROUPS, SIZE, PROMPT, RESPONSE = 6, 4, 50, 100  # of the step, shared evenly
NEEDS: frozenset[str] = frozenset()


def rollouts(vocabulary: int) -> list[list[Rollout]]:
    """Returns the groups of this rank."""
    draw = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=draw).tolist()

    prompts = [tokens(PROMPT) for _ in range(GROUPS)]
    every = [[Rollout(prompt, tokens(RESPONSE), [-1.0] * RESPONSE, True) for _ in range(SIZE)] for prompt in prompts]
    return every[ranks.own_rank() :: ranks.count()]


def measure(rank: int, count: int, folder: Path) -> None:
    """Measures one rank."""
    found: dict[str, float] = {}
    with measuring(rank, count, found, folder / f"found-{count}.json"):
        two_steps(found, folder / "model")


def two_steps(found: dict[str, float], model: Path) -> None:
    """Leaves what is found of the second."""
    policy = Policy(model, Train(), 1.0, "cpu", torch.float32, Hardware(micro_tokens=1024))
    groups = rollouts(policy.module.config.vocab_size)
    batch = TokenBatch.of(groups, [0.0, 1.0] * (len(groups) * SIZE // 2), RESPONSE, "cpu")
    for _ in range(2):
        before, start = forget(), time.process_time()
        policy.stats(batch)
        for part in policy.micro_batches(batch):
            policy.backward(-policy.current(part, NEEDS).logp.sum() / batch.global_tokens())
        policy.apply(1e-6)
        found |= {"seconds": time.process_time() - start, "peak": peak(), "more": peak() - before}
    found["parameters"] = sum(x.numel() for x in policy.weights.values())


def main(*sizes: int) -> None:
    rows = []
    for millions in sizes or SHAPES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make(millions, folder / "model")
            for count in (1, 2, 3):
                spawn(measure, args=(count, folder), nprocs=count)
            found = [json.loads((folder / f"found-{count}.json").read_text()) for count in (1, 2, 3)]
        for count, each in enumerate(found, 1):
            share = each["seconds"] / found[0]["seconds"]
            name, taken = f"{each['parameters'] / 1e6:.1f} M", f"{each['seconds']:.2f}"
            rows.append([name, str(count), taken, f"{share:.2f}", f"{each['peak']:.0f}", f"{each['more']:.0f}"])
    columns = ["parameters", "ranks", "CPU s of a rank", "of one process", "peak, MiB", "of it in the step"]
    show(f"A step of {GROUPS * SIZE} responses of {PROMPT} + {RESPONSE} tokens, gloo, one thread a rank", columns, rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
