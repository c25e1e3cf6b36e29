"""Time and memory of the token statistics at the vocabulary of Qwen2.5, against plain formulas, trl and Liger.

    python -m benchmarks.tokenstats                                     # 2,048 tokens, one and two threads
    python -m benchmarks.tokenstats --tokens 8192 32768 --threads 2

Shown are the statistics alone, as for a whole rollout batch, and with the gradient of log p, as in an update. Memory is
the peak of the process beyond its memory before; with a gradient, the gradients of hidden states and head are in it.
A computation that takes longer than ten seconds is done only once. Liger is measured where it is installed (`pip
install liger-kernel`).
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import selective_log_softmax_and_entropy

from benchmarks.common import show
from benchmarks.memory import forget_peak, memory_mib
from harness.tokens.head import Head
from harness.tokens.statistics import token_stats

VOCABULARY, HIDDEN = 152_064, 896
CHUNK = 32_768  # columns of trl's tiles: its own default
SLOW = 10.0  # seconds from which on a computation is not repeated
FITS = 2**33  # bytes; formulas that need more are not run
ALONE = "log p alone, streamed"


@dataclass(frozen=True)
class Rival:
    """A way to the statistics: its function gives log p, or a loss of it, as the first of its results."""

    run: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
    copies: int = 0  # tensors of size tokens x vocabulary that it holds at least
    only_gradient: bool = False  # it always computes the gradient

    def fits(self, tokens: int) -> bool:
        return 4 * self.copies * tokens * VOCABULARY <= FITS


def plain_formulas(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, ...]:
    logp_TV = torch.log_softmax(hidden_TD @ weight_VD.T, dim=-1)
    logp_T = logp_TV.gather(1, targets_T[:, None]).squeeze(1)
    logp_TV = logp_TV.detach()
    p_TV = logp_TV.exp()
    p_logp_TV = p_TV * logp_TV
    return logp_T, -p_logp_TV.sum(-1), (p_TV * p_TV).sum(-1), (p_TV * p_logp_TV).sum(-1)


def trl_statistics(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, ...]:
    return selective_log_softmax_and_entropy(hidden_TD @ weight_VD.T, targets_T, entropy_requires_grad=False)


def trl_chunked(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, ...]:
    outputs = ("entropy", "log_sum_sq_probs")
    return ChunkedLogProbFunction.apply(hidden_TD, weight_VD, None, targets_T, 1.0, CHUNK, None, 1.0, outputs)


def liger_chunked(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, ...]:
    """Return the loss of GRPO of responses of 256 tokens; Liger computes its gradient at once."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    loss = LigerFusedLinearGRPOLoss(beta=0.0, compiled=False, use_ref_model=False)
    targets_BL = targets_T.view(-1, 256)
    rows = len(targets_BL)
    hidden_BLD, advantages_B = hidden_TD.view(rows, 256, -1), torch.ones(rows)
    return loss(hidden_BLD, weight_VD, targets_BL, torch.ones_like(targets_BL), advantages_B)[:1]


def streamed(**which: Any) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:
    def run(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> tuple[Tensor, ...]:
        return (token_stats(hidden_TD, Head(weight_VD), targets_T, 1.0, **which).logp,)

    return run


RIVALS = {
    ALONE: Rival(streamed(entropy=False)),
    "all statistics, streamed": Rival(streamed(sum_p2=True)),
    "all statistics, plain formulas": Rival(plain_formulas, copies=4),
    "log p and entropy, trl": Rival(trl_statistics, copies=1),
    "log p, entropy, sum of p², trl's chunks": Rival(trl_chunked),
}
if importlib.util.find_spec("liger_kernel"):
    RIVALS["GRPO's loss, Liger's chunks"] = Rival(liger_chunked, only_gradient=True)


@dataclass(frozen=True)
class Inputs:
    hidden_TD: Tensor
    weight_VD: Tensor
    targets_T: Tensor

    @classmethod
    def drawn(cls, tokens: int, gradient: bool) -> Inputs:
        generator = torch.Generator().manual_seed(0)
        hidden_TD = torch.randn(tokens, HIDDEN, generator=generator)
        weight_VD = torch.randn(VOCABULARY, HIDDEN, generator=generator) * (4 / HIDDEN) ** 0.5
        targets_T = torch.randint(VOCABULARY, (tokens,), generator=generator)
        return cls(hidden_TD.requires_grad_(gradient), weight_VD.requires_grad_(gradient), targets_T)

    def compute(self, rival: Rival) -> None:
        """Run a rival, with its gradients if the inputs require them."""
        first, *_ = rival.run(self.hidden_TD, self.weight_VD, self.targets_T)
        if first.requires_grad:
            first.sum().backward()
        self.hidden_TD.grad = self.weight_VD.grad = None


def measure(rivals: Sequence[str], tokens: int, gradient: bool, repeats: int) -> list[list[str]]:
    """Return the row of each rival for this number of tokens."""
    inputs = Inputs.drawn(tokens, gradient)
    names = dict.fromkeys((ALONE, *rivals))  # all others are compared with the first
    running = {name: RIVALS[name] for name in names if RIVALS[name].fits(tokens)}
    if not gradient:
        running = {name: rival for name, rival in running.items() if not rival.only_gradient}
    seconds = dict.fromkeys(running, float("inf"))
    peaks_mib = dict.fromkeys(running, 0.0)
    for turn in range(1 + repeats):  # interleaved, since machines are noisy
        for name, rival in running.items():
            if turn == 0 or seconds[name] < SLOW:
                before = forget_peak()
                start = time.perf_counter()
                inputs.compute(rival)
                seconds[name] = min(seconds[name], time.perf_counter() - start)
                peaks_mib[name] = max(peaks_mib[name], memory_mib("VmHWM") - before)
    rows = []
    for name in running:
        ratio = seconds[name] / seconds[ALONE]
        rows.append([name, f"{seconds[name]:.2f}", f"{ratio:.2f}", f"{peaks_mib[name]:,.0f}"])
    return rows


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenstats")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--rivals", nargs="+", choices=list(RIVALS), default=list(RIVALS), metavar="NAME")
    given = parser.parse_args(arguments)
    for threads in given.threads:
        torch.set_num_threads(threads)
        for tokens in given.tokens:
            for gradient in (False, True):
                title = (
                    f"{tokens:,} tokens, vocabulary of {VOCABULARY:,}, hidden states of {HIDDEN}, threads: {threads}, "
                    f"{'with' if gradient else 'without'} the gradient of log p"
                )
                columns = ["", "s", "times log p alone", "MiB at most"]
                show(title, columns, measure(given.rivals, tokens, gradient, given.repeats))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
