"""The cost of each method beside plain GRPO: whole training steps on the same tokens, in pairs, CPU seconds.

Beside it the tokens that the update computes, of GRPO's, and the method's own arithmetic without any model, on a batch
of this size: what a step costs whatever the model.

`python -m benchmarks.methods 5 gspo dapo` measures some methods, in five rounds.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from baselines import METHODS
from benchmarks.common import console, show, trainer
from harness.batch import TokenBatch, TokenStats
from harness.composition import Method
from harness.conformance.probe import Probe, compute_outcome, random_probe
from harness.tokens.metrics import Stopwatch
from harness.trainer import Trainer

PLAIN = "grpo"
# What a method may ask for beyond plain GRPO's own passes, and so may cost.
COSTS = {
    "values": "a critic",
    "ref_logp": "a second model's log p",
    "entropy_grad": "H with gradient",
    "entropy_now": "H of each pass",
    "sum_p2": "sum p^2",
}


def main(rounds: int = 3, methods: Sequence[str] = tuple(METHODS)) -> None:
    """Times the same step by each method and by GRPO, `rounds` times by turns, and takes the best time of both."""
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        plain = trainer(PLAIN, Path(folder))
        start, usual = copy.deepcopy(plain.policy.state()), passed(plain)
        train, longest = plain.config.train, plain.config.rollout.max_new_tokens
        given = random_probe(groups=train.prompts, size=train.group, longest=longest).to(torch.float32)
        for method in track(methods, "methods", console=console, transient=True):
            pair = {"plain": plain, "mine": trainer(method, Path(folder))}
            usual.clear()
            mine = passed(pair["mine"])
            best = dict.fromkeys(pair, float("inf"))
            for number in range(rounds):
                for name in pair if number % 2 else reversed(pair):
                    best[name] = min(best[name], seconds(pair[name], start))
            asks = ", ".join(asked(pair["mine"].method))
            own = min(arithmetic(pair["mine"].method, given, train.updates) for _ in range(rounds))
            rows.append(
                [
                    method,
                    f"{best['mine']:.3f}",
                    f"{best['mine'] / best['plain']:.3f}",
                    f"{sum(mine) / sum(usual):.2f}",
                    f"{1e3 * own:.0f}",
                    asks,
                ]
            )
    columns = ["method", "CPU s", "of GRPO", "tokens", "own ms", "asks for"]
    show(f"One training step of the demo, best of {rounds}", columns, rows)


def seconds(trainer: Trainer, start: dict[str, Any]) -> float:
    """Times the first step of the untrained policy, which draws the same responses whatever the method."""
    trainer.policy.load_state(copy.deepcopy(start))
    trainer.synchronise(0)
    before = time.process_time()
    trainer.train_step(1, Stopwatch())
    return time.process_time() - before


def passed(trainer: Trainer) -> list[int]:
    """Returns a list to which the trainer adds the tokens of each pass with gradient: responses without signal are in
    none."""
    found, compute = [], trainer.stats_during

    def heard(part: TokenBatch, old: TokenStats) -> TokenStats:
        found.append(len(part.index_T))
        return compute(part, old)

    trainer.stats_during = heard  # type: ignore[method-assign]
    return found


def arithmetic(method: Method, given: Probe, updates: int) -> float:
    """Times all that a method does in a step with statistics that are there, and the gradient of its loss."""
    before = time.process_time()
    compute_outcome(method, given, updates)
    return time.process_time() - before


def asked(method: Method) -> list[str]:
    """Returns what the method has the trainer compute that GRPO does not."""
    found = [cost for need, cost in COSTS.items() if need in method.needs]
    return [*found, "a pass before each update"] if method.marks_steps else found


if __name__ == "__main__":
    rounds, *chosen = sys.argv[1:] or ["3"]
    main(int(rounds), chosen or tuple(METHODS))
