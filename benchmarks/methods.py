"""The cost of each method relative to plain GRPO: CPU seconds of whole training steps on the same tokens, in pairs.

Also the tokens that the update computes relative to GRPO's, and the milliseconds of the method's own arithmetic on a
batch of this size, which do not depend on the model.

`python -m benchmarks.methods 5 gspo dapo` measures some methods, in five rounds.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from baselines import METHODS
from benchmarks.common import demo_trainer, show
from harness.conformance.probe import Probe, compute_outcome, random_probe
from harness.methods.batch import TokenBatch, TokenStats
from harness.methods.composition import Method
from harness.theory.explain import copy_from
from harness.tokens.metrics import Stopwatch
from harness.train.first_pass import FirstPass
from harness.train.trainer import Trainer

PLAIN = "grpo"
WITHOUT_FILTER = [name for name in METHODS if not Method.of(name, METHODS).needs_filter]  # the demo has no filter
# The needs that cost more than plain GRPO's own passes.
COSTS = {
    "values": "a critic",
    "ref_logp": "a second model's log p",
    "entropy_grad": "H with gradient",
    "entropy_now": "H of each pass",
    "sum_p2": "sum p^2",
    "likeliest_entropy": "H of the likeliest tokens",
}


def main(rounds: int = 2, methods: Sequence[str] = WITHOUT_FILTER) -> None:
    """Time the same step by each method and by GRPO, `rounds` times by turns, and take the best time of both."""
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        grpo = demo_trainer(PLAIN, Path(folder))
        initial_state, tokens_of_grpo = copy.deepcopy(grpo.policy.state()), count_tokens(grpo)
        train, longest = grpo.config.train, grpo.config.rollout.max_new_tokens
        probe = random_probe(groups=train.prompts, size=train.group, longest=longest).to(torch.float32)
        for name in track(methods, "methods", console=Console(stderr=True), transient=True):
            pair = {"grpo": grpo, "method": demo_trainer(name, Path(folder))}
            method = pair["method"].method
            tokens_of_grpo.clear()
            tokens = count_tokens(pair["method"])
            best = dict.fromkeys(pair, float("inf"))
            for number in range(rounds):
                # The first of a pair finds other caches than the second, so they take turns.
                for contender in pair if number % 2 else reversed(pair):
                    best[contender] = min(best[contender], step_seconds(pair[contender], initial_state))
            arithmetic_s = min(arithmetic_seconds(method, probe, train.updates) for _ in range(rounds))
            rows.append(
                [
                    name,
                    f"{best['method']:.3f}",
                    f"{best['method'] / best['grpo']:.3f}",
                    f"{sum(tokens) / sum(tokens_of_grpo):.2f}",
                    f"{1e3 * arithmetic_s:.0f}",
                    ", ".join(extra_costs(method)),
                ]
            )
    columns = ["method", "CPU s", "of GRPO", "tokens", "own ms", "asks for"]
    show(f"One training step of the demo, best of {rounds}", columns, rows)


def step_seconds(trainer: Trainer, initial_state: Mapping[str, Tensor]) -> float:
    """Time the first step of the untrained policy, which draws the same responses for every method."""
    trainer.policy.load_state(initial_state.keys(), partial(copy_from, initial_state))
    trainer.synchronise(0)
    start = time.process_time()
    trainer.train_step(1, Stopwatch())
    return time.process_time() - start


def count_tokens(trainer: Trainer) -> list[int]:
    """Return a list to which the trainer will append the tokens of each pass with gradient.

    No such pass contains responses without signal.
    """
    tokens: list[int] = []
    stats_during = trainer.stats_during

    def counting(part: TokenBatch, old: TokenStats, first: FirstPass | None = None) -> TokenStats:
        tokens.append(len(part.index_T))
        return stats_during(part, old, first)

    trainer.stats_during = counting  # type: ignore[method-assign]
    return tokens


def arithmetic_seconds(method: Method, probe: Probe, updates: int) -> float:
    """Time a method's whole work in a step on given statistics, with the gradient of its loss."""
    start = time.process_time()
    compute_outcome(method, probe, updates)
    return time.process_time() - start


def extra_costs(method: Method) -> list[str]:
    """Return the computations that the method needs and GRPO does not."""
    costs = [cost for need, cost in COSTS.items() if need in method.needs]
    if method.marks_steps:
        costs.append("a pass before each update")
    return costs


if __name__ == "__main__":
    rounds, *chosen = sys.argv[1:] or ["2"]
    main(int(rounds), chosen or WITHOUT_FILTER)
