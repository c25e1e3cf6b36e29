"""Which tokens move the entropy of a real model? Updates are made again without the signal of some (rules.md).

python -m studies.laptop.tokens measure 0 1 2 3 4    # seeds, each some ten minutes of a core; seeds that are there stay
python -m studies.laptop.tokens                      # print the table of what has been measured
"""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from pandas import DataFrame
from torch import Tensor

from baselines.clip_b import ClipB
from baselines.clip_v import ClipV
from harness import config
from harness.base import files
from harness.base.seeds import derive
from harness.methods.batch import TokenBatch
from harness.methods.composition import Signal
from harness.table.statistics import Estimate, mean_interval
from harness.theory.explain import PLAIN, batch_of, build_trainer, copy_from
from harness.tokens import dynamics
from harness.tokens.metrics import Stopwatch
from harness.train.trainer import Trainer
from harness.verify.pool import VerifierPool
from studies.pages import REFERENCE

MEASURED = REFERENCE / "laptop-matrix-sorting/tokens.json"
TABLE = MEASURED.with_suffix(".csv")
STEPS = (1, 4, 7, 10)
SHARE = 0.02
DRAWS = 4
NOTHING = "nothing"
NEGATIVE, ANY = "as many of negative advantage", "as many with an advantage"  # at random

# One entry for each seed and step: the tokens' share, GRPO's change there, and the mean change without them, by name;
# `trained` is the change by the step itself, which differs by the rounding of bfloat16.
Measurement = Mapping[str, Any]


def measure_seed(seed: int) -> list[Measurement]:
    """Train GRPO with a seed; return the measurements on the batches of `STEPS`."""
    loaded = config.load_config("laptop-matrix", ["round=sorting", f"seeds=[{seed}]"])
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder, VerifierPool.of(loaded.verify) as verifier:
        trainer = build_trainer(loaded, PLAIN, folder, verifier)
        for step in range(1, max(STEPS) + 1):
            if step not in STEPS:
                trainer.train_step(step, Stopwatch())
                continue
            batch = batch_of(trainer, step)
            measured = measure_batch(trainer, step, batch, torch.Generator().manual_seed(derive("tokens", seed, step)))
            before = mean_entropy(trainer, batch)
            trainer.train_step(step, Stopwatch())  # samples the same batch again, since seeds depend on the step alone
            trained = mean_entropy(trainer, batch) - before
            measurements.append({"seed": seed, "step": step, "trained": trained, "sets": measured})
            print(json.dumps(measurements[-1]), flush=True)
    return measurements


def mean_entropy(trainer: Trainer, batch: TokenBatch) -> float:
    entropy_T = trainer.policy.stats(batch).entropy
    assert entropy_T is not None
    return entropy_T.mean().item()


def measure_batch(trainer: Trainer, step: int, batch: TokenBatch, generator: torch.Generator) -> dict[str, Any]:
    """Return the share, the place and the effect of each set of tokens; the policy stays as it is."""
    minibatches = list(batch.split(trainer.config.train.updates))
    signal = trainer.method.signal(trainer.stats_before(batch, dynamics.NEEDS), batch, minibatches)
    start = copy.deepcopy(trainer.policy.state())  # copied, since updates change the tensors of the state in place

    def change_without(left_out_T: Tensor) -> Tensor:
        change_T = updated_without(trainer, step, batch, minibatches, signal, left_out_T)
        trainer.policy.load_state(start, partial(copy_from, start))
        return change_T

    own_T = change_without(torch.zeros_like(signal.weights_T, dtype=torch.bool))
    measured = {}
    for name, draws in sets_of_tokens(signal, batch, generator).items():
        without = [change_without(left_out_T).mean().item() for left_out_T in draws]
        measured[name] = {
            "share": draws[0].float().mean().item(),
            "there": float(np.mean([(own_T * left_out_T).mean().item() for left_out_T in draws])),
            "without": float(np.mean(without)),
        }
    return {NOTHING: {"share": 0.0, "there": 0.0, "without": own_T.mean().item()}} | measured


def sets_of_tokens(signal: Signal, batch: TokenBatch, generator: torch.Generator) -> dict[str, list[Tensor]]:
    """Return the sets of tokens that are left out, by name: one mask of each, or one for each random draw."""
    old, advantages_T = signal.old, signal.advantages_T
    sets = {name: [mask_T] for name, mask_T in dynamics.quadrants(advantages_T, dynamics.deviation(old)).items()}
    for name, clip in {"clip_b": ClipB(share=SHARE), "clip_v": ClipV(share=SHARE)}.items():
        sets[name] = [torch.as_tensor(clip.weights(old, advantages_T, batch) == 0)]
    size = int(sets["clip_b"][0].sum())
    for name, among_T in {NEGATIVE: advantages_T < 0, ANY: advantages_T != 0}.items():
        sets[name] = [drawn(among_T, size, generator) for _ in range(DRAWS)]
    return sets


def drawn(among_T: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Return a mask of this many random tokens among some."""
    places = among_T.nonzero().flatten()
    mask_T = torch.zeros_like(among_T)
    mask_T[places[torch.randperm(len(places), generator=generator)[:size]]] = True
    return mask_T


def updated_without(
    trainer: Trainer,
    step: int,
    batch: TokenBatch,
    minibatches: Sequence[TokenBatch],
    signal: Signal,
    left_out_T: Tensor,
) -> Tensor:
    """Make the updates of a step without the signal of some tokens; return the change of each token's entropy."""
    policy, method = trainer.policy, trainer.method
    kept = dataclasses.replace(signal, weights_T=signal.weights_T * ~left_out_T)
    for minibatch in minibatches:
        for part in policy.micro_batches(method.contributing(minibatch, kept)):
            policy.backward(method.loss(trainer.stats_during(part, signal.old), kept.at(part.index_T), part))
        policy.step(step)
    after_T = policy.stats(batch).entropy
    assert after_T is not None
    assert signal.old.entropy is not None
    return after_T - signal.old.entropy


# What has been measured


def kept_measurements() -> list[Measurement]:
    return json.loads(MEASURED.read_text()) if MEASURED.exists() else []


def of_seeds(measurements: Iterable[Measurement], name: str, number: str) -> np.ndarray:
    """Return a number of a set of tokens for each seed: the mean over its batches."""
    by_seed: dict[int, list[float]] = {}
    for measured in measurements:
        by_seed.setdefault(measured["seed"], []).append(measured["sets"][name][number])
    return np.array([np.mean(numbers) for numbers in by_seed.values()])


def mean_of(name: str, number: str) -> float:
    """Return the mean over seeds of a number of a set of tokens."""
    return float(of_seeds(kept_measurements(), name, number).mean())


def part_of_tokens(name: str, other: str = NOTHING) -> Estimate:
    """Return how much more the entropy changes without some tokens than without others."""
    measurements = kept_measurements()
    return mean_interval(of_seeds(measurements, name, "without") - of_seeds(measurements, other, "without"))


def table() -> DataFrame:
    """Return for each set its share of the tokens, of GRPO's change, and the change without it."""
    own = mean_of(NOTHING, "without")
    rows = []
    for name in kept_measurements()[0]["sets"]:
        part = part_of_tokens(name)
        row = {
            "left out": name.replace("_", " "),
            "share of the tokens": f"{mean_of(name, 'share'):.1%}",
            "of GRPO's change, there": "" if name == NOTHING else f"{mean_of(name, 'there') / own:.0%}",
            "change of the entropy": f"{mean_of(name, 'without'):+.4f}",
            "less GRPO's own": "" if name == NOTHING else f"{part.mean:+.4f} [{part.low:+.4f}, {part.high:+.4f}]",
        }
        rows.append(row)
    return DataFrame(rows)


def main(*arguments: str) -> None:
    if arguments:
        for seed in map(int, arguments[1:]):
            if seed not in {measured["seed"] for measured in kept_measurements()}:
                files.write_text(MEASURED, json.dumps([*kept_measurements(), *measure_seed(seed)], indent=1) + "\n")
    table().to_csv(TABLE, index=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
