"""Shows the cost of padding: positions that the model computes, the balance of ranks, and the time of a pass, as
responses of real models are long: most of them short, a few cut off at the limit."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.common import show
from harness.batch import Rollout, TokenBatch
from harness.train import packing
from harness.train.collect import shared_out
from harness.train.hidden import hidden_states

GROUP, PROMPTS, RANKS, UPDATES = 16, 128, 8, 2
PROMPT, LIMIT, MICRO = 150, 8192, 16384  # tokens


def drawn(median: int, limit: int, prompts: int, prompt: int = PROMPT) -> list[list[Rollout]]:
    """Groups of responses with lognormal lengths: some problems ask for more than others, and some responses do.

    The responses of a group differ in their tokens, since equal ones would be computed once.
    """
    chance = np.random.default_rng(0)
    of_problems = chance.normal(0, 0.5, (prompts, 1))
    lengths = median * np.exp(of_problems + chance.normal(0, 0.7, (prompts, GROUP)))
    sizes = np.maximum(chance.normal(prompt, prompt / 4, prompts), prompt / 4).astype(int).tolist()
    return [
        [Rollout([1] * size, [token] * length, [0.0] * length, length < limit) for token, length in enumerate(row)]
        for size, row in zip(sizes, lengths.clip(8, limit).astype(int).tolist(), strict=True)
    ]


def batch_of(groups: Sequence[Sequence[Rollout]], limit: int) -> TokenBatch:
    return TokenBatch.of(groups, [0.0] * sum(map(len, groups)), limit, "cpu")


def in_order(batch: TokenBatch, tokens: int) -> list[TokenBatch]:
    """Micro-batches as they come, which is what sorting by length is to be compared with."""
    parts: list[list[int]] = [[]]
    for row in range(len(batch)):
        widest = max(len(batch.sequences[each]) for each in [*parts[-1], row])
        if parts[-1] and widest * (len(parts[-1]) + 1) > tokens:
            parts.append([])
        parts[-1].append(row)
    return [batch.take(part) for part in parts]


def positions(part: TokenBatch) -> int:
    """Counts what goes through the layers of the model."""
    if part.packed:
        return len(packing.PackedRow.of(part, "cpu").tokens_R)
    return len(part) * max(map(len, part.sequences))


def shares(median: int) -> list[list[str]]:
    batch = batch_of(drawn(median, LIMIT, PROMPTS // RANKS), LIMIT)
    ways = {
        "padded, as they come": in_order(batch, MICRO),
        "padded, by length": list(batch.micro_batches(MICRO)),
        "packed": list(batch.micro_batches(MICRO, packing=True)),
    }
    tokens = sum(map(len, batch.sequences))
    rows = []
    for name, parts in ways.items():
        computed = sum(map(positions, parts))
        padding = 0.0 if name == "packed" else 1 - tokens / computed
        rows.append(
            [f"{median:,}", name, str(len(parts)), f"{computed:,}", f"{padding:.1%}", f"{computed / tokens:.2f}"]
        )
    return rows


def balance(median: int) -> list[str]:
    """Returns by how much the busiest rank's tokens exceed the mean, for which the others wait, over mini-batches."""
    sizes = [sum(len(r.response) for r in group) for group in drawn(median, LIMIT, PROMPTS)]
    part, share = PROMPTS // UPDATES, PROMPTS // UPDATES // RANKS

    def excess(owners: Sequence[int]) -> str:
        loads = [np.bincount(owners[i : i + part], sizes[i : i + part], RANKS) for i in range(0, PROMPTS, part)]
        return f"{np.mean([load.max() / load.mean() for load in loads]) - 1:.1%}"

    return [
        f"{median:,}",
        excess([slot // share % RANKS for slot in range(PROMPTS)]),
        excess(shared_out(sizes, UPDATES, RANKS)),
    ]


def seconds(limit: int = 1000, tokens: int = 4096) -> list[list[str]]:
    """CPU seconds of the passes, forward and backward, over a few groups; the ways take turns."""
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
    batch = batch_of(drawn(200, limit, 3, prompt=100), limit)
    ways = {
        "padded, as they come": in_order(batch, tokens),
        "padded, by length": list(batch.micro_batches(tokens)),
        "packed": list(batch.micro_batches(tokens, packing=True)),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for name, parts in ways.items():
            start = time.process_time()
            for part in parts:
                hidden_states(model.base_model, part, "cpu").sum().backward()
            taken[name].append(time.process_time() - start)
    least = {name: min(of) for name, of in taken.items()}
    computed = {name: sum(map(positions, parts)) for name, parts in ways.items()}
    return [
        [name, f"{computed[name]:,}", f"{least[name]:.1f}", f"{least[name] / least['padded, by length']:.2f}"]
        for name in ways
    ]


def main() -> None:
    torch.set_num_threads(1)
    medians = (300, 1000, 3000)
    show(
        f"A rank's share of a step: {PROMPTS // RANKS} groups of {GROUP}, micro-batches of {MICRO:,} tokens",
        ["median response", "sequences", "micro-batches", "positions computed", "padding", "per token"],
        [row for median in medians for row in shares(median)],
    )
    show(
        f"The busiest of {RANKS} ranks above the mean, {PROMPTS} groups in {UPDATES} mini-batches",
        ["median response", "dealt out by number", "by tokens"],
        [balance(median) for median in medians],
    )
    show(
        "Forward and backward of 3 groups on a model of 5 M parameters, responses of up to 1,000 tokens, one thread",
        ["sequences", "positions computed", "CPU s", "of padded by length"],
        seconds(),
    )


if __name__ == "__main__":
    main()
