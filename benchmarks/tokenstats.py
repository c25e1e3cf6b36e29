"""Time and memory of the token statistics at the vocabulary of Qwen2.5, against plain formulas and against trl.

Memory is the most bytes of tensors that were alive at once beyond the inputs, counted as they are made and freed.
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
FITS = 2**33  # bytes; what would take more is not run
LOGP, ALL = "log-probabilities alone, streamed", "all statistics, streamed"


class Alive(TorchDispatchMode):
    """The bytes of the tensors that operations make, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        held = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known | held:
                    self.known.add(storage._cdata)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self.freed, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def freed(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def plain(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, ...]:
    logp_TV = torch.log_softmax(hidden_TD @ weight_VD.T, dim=-1)
    p_TV = logp_TV.exp()
    p_logp_TV = p_TV * logp_TV
    logp_T = logp_TV.gather(1, targets_T[:, None]).squeeze(1)
    return logp_T, -p_logp_TV.sum(-1), (p_TV * p_TV).sum(-1), (p_TV * p_logp_TV).sum(-1)


def theirs(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, ...]:
    return selective_log_softmax_and_entropy(hidden_TD @ weight_VD.T, targets_T, entropy_requires_grad=False)


def ours(**which: bool) -> Callable[[Tensor, Tensor, Tensor], object]:
    return lambda hidden_TD, weight_VD, targets_T: token_stats(hidden_TD, Head(weight_VD), targets_T, 1.0, **which)


# name -> what computes it, and how many tensors of T x V it holds
RIVALS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], object], int]] = {
    LOGP: (ours(entropy=False), 0),
    ALL: (ours(sum_p2=True), 0),
    "all statistics, plain formulas": (plain, 4),
    "log-probabilities and entropy, trl": (theirs, 1),
}


def measure(hidden: int, tokens: int, repeats: int) -> list[list[str]]:
    generator = torch.Generator().manual_seed(0)
    hidden_TD = torch.randn(tokens, hidden, generator=generator)
    weight_VD = torch.randn(VOCABULARY, hidden, generator=generator) * (4 / hidden) ** 0.5
    targets_T = torch.randint(VOCABULARY, (tokens,), generator=generator)
    seconds: dict[str, float] = {}
    bytes_: dict[str, int] = {}
    running = {name: run for name, (run, copies) in RIVALS.items() if 4 * copies * tokens * VOCABULARY <= FITS}
    with torch.no_grad():
        for name, run in running.items():
            with Alive() as alive:
                run(hidden_TD, weight_VD, targets_T)
            bytes_[name] = alive.peak
        for _ in range(repeats):  # interleaved, since machines are noisy
            for name, run in running.items():
                start = time.perf_counter()
                run(hidden_TD, weight_VD, targets_T)
                seconds[name] = min(seconds.get(name, float("inf")), time.perf_counter() - start)
    return [
        [
            name,
            f"{tokens:,}",
            f"{seconds[name]:.2f}",
            f"{seconds[name] / seconds[LOGP]:.2f}",
            f"{bytes_[name] / 2**20:,.0f}",
        ]
        if name in running
        else [name, f"{tokens:,}", "", "", f"does not fit: {4 * copies * tokens * VOCABULARY / 2**20:,.0f} or more"]
        for name, (_, copies) in RIVALS.items()
    ]


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
