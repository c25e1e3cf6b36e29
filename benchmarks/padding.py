"""The cost of padding: positions that the model computes, the balance of ranks, and the time of a pass.

The lengths of responses are like those of real models: most of them short, a few cut off at the limit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import show
from harness.methods.batch import Rollout, TokenBatch
from harness.train import packing
from harness.train.collect import shared_out
from harness.train.hidden import hidden_states

GROUP, PROMPTS, RANKS, UPDATES = 16, 128, 8, 2
PROMPT, LIMIT, MICRO = 150, 8192, 16384  # tokens


def random_groups(median: int, limit: int, prompts: int, prompt: int = PROMPT) -> list[list[Rollout]]:
    """Return groups of responses with lognormal lengths, which differ between problems and within them.

    The responses of a group differ in their tokens, since equal ones would be computed once.
    """
    random = np.random.default_rng(0)
    of_problems = random.normal(0, 0.5, (prompts, 1))
    lengths = median * np.exp(of_problems + random.normal(0, 0.7, (prompts, GROUP)))
    lengths_of_groups = lengths.clip(8, limit).astype(int).tolist()
    prompt_lengths = np.maximum(random.normal(prompt, prompt / 4, prompts), prompt / 4).astype(int).tolist()
    groups = []
    for prompt_length, response_lengths in zip(prompt_lengths, lengths_of_groups, strict=True):
        group = []
        for token, length in enumerate(response_lengths):
            group.append(Rollout([1] * prompt_length, [token] * length, [0.0] * length, length < limit))
        groups.append(group)
    return groups


def batch_of(groups: Sequence[Sequence[Rollout]], limit: int) -> TokenBatch:
    return TokenBatch.of(groups, [0.0] * sum(map(len, groups)), limit, "cpu")


def in_order(batch: TokenBatch, tokens: int) -> list[TokenBatch]:
    """Return micro-batches in the order of the batch, the baseline for sorting by length."""
    parts: list[list[int]] = [[]]
    for row in range(len(batch)):
        widest = max(len(batch.sequences[member]) for member in [*parts[-1], row])
        if parts[-1] and widest * (len(parts[-1]) + 1) > tokens:
            parts.append([])
        parts[-1].append(row)
    return [batch.take(part) for part in parts]


def positions(part: TokenBatch) -> int:
    """Count the positions that go through the layers of the model."""
    if part.packed:
        return len(packing.PackedRow.of(part, "cpu").tokens_R)
    return len(part) * max(map(len, part.sequences))


def ways_of(batch: TokenBatch, tokens: int) -> dict[str, list[TokenBatch]]:
    """Return the micro-batches of a batch, by the way in which they are formed."""
    return {
        "padded, as they come": in_order(batch, tokens),
        "padded, by length": list(batch.micro_batches(tokens)),
        "packed": list(batch.micro_batches(tokens, packing=True)),
    }


def padding_rows(median: int) -> list[list[str]]:
    """Return the padding of each way to form micro-batches."""
    batch = batch_of(random_groups(median, LIMIT, PROMPTS // RANKS), LIMIT)
    tokens = sum(map(len, batch.sequences))
    rows = []
    for name, parts in ways_of(batch, MICRO).items():
        computed = sum(map(positions, parts))
        padding = 0.0 if name == "packed" else 1 - tokens / computed
        rows.append(
            [f"{median:,}", name, str(len(parts)), f"{computed:,}", f"{padding:.1%}", f"{computed / tokens:.2f}"]
        )
    return rows


def balance(median: int) -> list[str]:
    """Return the excess of the busiest rank's tokens over the mean, by two ways to distribute the groups.

    All other ranks wait for the busiest one in each mini-batch.
    """
    tokens = [sum(len(rollout.response) for rollout in group) for group in random_groups(median, LIMIT, PROMPTS)]
    in_minibatch = PROMPTS // UPDATES
    share = in_minibatch // RANKS

    def excess(owners: Sequence[int]) -> str:
        ratios = []
        for first in range(0, PROMPTS, in_minibatch):
            groups = slice(first, first + in_minibatch)
            loads = np.bincount(owners[groups], tokens[groups], RANKS)
            ratios.append(loads.max() / loads.mean())
        return f"{np.mean(ratios) - 1:.1%}"

    by_number = [slot // share % RANKS for slot in range(PROMPTS)]
    return [f"{median:,}", excess(by_number), excess(shared_out(tokens, UPDATES, RANKS))]


def pass_rows(limit: int = 1000, tokens: int = 4096) -> list[list[str]]:
    """Return the CPU seconds of forward and backward passes over a few groups; the ways take turns."""
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    model = Qwen2ForCausalLM(config)
    packing.prepare_for_packing(model)
    batch = batch_of(random_groups(200, limit, 3, prompt=100), limit)
    ways = ways_of(batch, tokens)
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(3):
        for name, parts in ways.items():
            start = time.process_time()
            for part in parts:
                hidden_states(model.base_model, part, "cpu").sum().backward()
            best[name] = min(best[name], time.process_time() - start)
    rows = []
    for name, parts in ways.items():
        computed = sum(map(positions, parts))
        rows.append([name, f"{computed:,}", f"{best[name]:.1f}", f"{best[name] / best['padded, by length']:.2f}"])
    return rows


def main() -> None:
    torch.set_num_threads(1)
    medians = (300, 1000, 3000)
    show(
        f"A rank's share of a step: {PROMPTS // RANKS} groups of {GROUP}, micro-batches of {MICRO:,} tokens",
        ["median response", "sequences", "micro-batches", "positions computed", "padding", "per token"],
        [row for median in medians for row in padding_rows(median)],
    )
    show(
        f"The busiest of {RANKS} ranks above the mean, {PROMPTS} groups in {UPDATES} mini-batches",
        ["median response", "dealt out by number", "by tokens"],
        [balance(median) for median in medians],
    )
    show(
        "Forward and backward of 3 groups on a model of 5 M parameters, responses of up to 1,000 tokens, one thread",
        ["sequences", "positions computed", "CPU s", "of padded by length"],
        pass_rows(),
    )


if __name__ == "__main__":
    main()
