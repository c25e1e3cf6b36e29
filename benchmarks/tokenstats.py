"""Time and memory of the token statistics at the vocabulary of Qwen2.5, against plain formulas and against trl.

Memory is the peak of the bytes of live tensors beyond the inputs, counted as they are allocated and freed.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from trl.trainer.utils import selective_log_softmax_and_entropy

from benchmarks.common import show
from harness.tokens.head import Head
from harness.tokens.statistics import token_stats

VOCABULARY = 152_064
FITS = 2**33  # bytes; formulas that need more are not run
LOGP, ALL = "log-probabilities alone, streamed", "all statistics, streamed"


class LiveBytes(TorchDispatchMode):
    """A counter of the bytes of live tensors that operations have allocated, and of their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known | inputs:
                    self.known.add(storage._cdata)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self.freed, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def freed(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def plain_formulas(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, ...]:
    logp_TV = torch.log_softmax(hidden_TD @ weight_VD.T, dim=-1)
    p_TV = logp_TV.exp()
    p_logp_TV = p_TV * logp_TV
    logp_T = logp_TV.gather(1, targets_T[:, None]).squeeze(1)
    return logp_T, -p_logp_TV.sum(-1), (p_TV * p_TV).sum(-1), (p_TV * p_logp_TV).sum(-1)


def trl_statistics(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, ...]:
    return selective_log_softmax_and_entropy(hidden_TD @ weight_VD.T, targets_T, entropy_requires_grad=False)


def streamed(**which: bool) -> Callable[[Tensor, Tensor, Tensor], object]:
    return lambda hidden_TD, weight_VD, targets_T: token_stats(hidden_TD, Head(weight_VD), targets_T, 1.0, **which)


# The function of each rival, and the number of T x V tensors that it holds.
RIVALS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], object], int]] = {
    LOGP: (streamed(entropy=False), 0),
    ALL: (streamed(sum_p2=True), 0),
    "all statistics, plain formulas": (plain_formulas, 4),
    "log-probabilities and entropy, trl": (trl_statistics, 1),
}


def measure(hidden: int, tokens: int, repeats: int) -> list[list[str]]:
    """Return the row of each rival for this number of tokens."""
    generator = torch.Generator().manual_seed(0)
    hidden_TD = torch.randn(tokens, hidden, generator=generator)
    weight_VD = torch.randn(VOCABULARY, hidden, generator=generator) * (4 / hidden) ** 0.5
    targets_T = torch.randint(VOCABULARY, (tokens,), generator=generator)
    seconds: dict[str, float] = {}
    peak_bytes: dict[str, int] = {}
    needed = {name: 4 * copies * tokens * VOCABULARY for name, (_, copies) in RIVALS.items()}
    running = {name: run for name, (run, _) in RIVALS.items() if needed[name] <= FITS}
    with torch.no_grad():
        for name, run in running.items():
            with LiveBytes() as live:
                run(hidden_TD, weight_VD, targets_T)
            peak_bytes[name] = live.peak
        for _ in range(repeats):  # interleaved, since machines are noisy
            for name, run in running.items():
                start = time.perf_counter()
                run(hidden_TD, weight_VD, targets_T)
                seconds[name] = min(seconds.get(name, float("inf")), time.perf_counter() - start)
    rows = []
    for name in RIVALS:
        row = [name, f"{tokens:,}"]
        if name in running:
            row += [f"{seconds[name]:.2f}", f"{seconds[name] / seconds[LOGP]:.2f}", f"{peak_bytes[name] / 2**20:,.0f}"]
        else:
            row += ["", "", f"does not fit: {needed[name] / 2**20:,.0f} or more"]
        rows.append(row)
    return rows


def main(hidden: int = 896, longest: int = 2**15) -> None:
    rows = []
    for tokens, repeats in ((2**11, 2), (2**13, 1), (2**15, 1)):
        if tokens <= longest:
            rows += measure(hidden, tokens, repeats)
    title = (
        f"Token statistics, vocabulary of {VOCABULARY:,}, hidden states of {hidden}, {torch.get_num_threads()} threads"
    )
    show(title, ["", "tokens", "s", "times log p alone", "MiB at most"], rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
