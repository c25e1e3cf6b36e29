"""What the pilot decides: the learning rate, and the power of designs for a difference of 0.1 in Pass@8.

Power counts Holm's largest factor for as many methods as are compared with GRPO.

    python -m studies.laptop.power PILOT    # the folder with the pilot's cells

docs/evidence/laptop.md has the rule.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from harness.base import files
from harness.base.units import plural
from harness.cells import evaluations
from harness.cells.evaluations import pass_at_k
from harness.cells.spec import CellSpec
from harness.table.statistics import Floats
from studies.demo.power import BASELINE, METHOD, components, power

DECISION = Path(__file__).parents[2] / "results/reference/laptop-matrix-pilot/decision.json"
K = 8
DIFFERENCE = 0.1  # in Pass@8, with none in Avg@16
CLOSE = 0.01  # in Avg@16: the lower learning rate counts
COMPARED, SEEDS, PROBLEMS = (6, 1), (5, 8, 10, 14, 16), (64, 96)

# Axes: C the scores Avg@16 and Pass@8, S seed, J problem.


def last_scores(pilot: Path) -> dict[float, dict[str, Floats]]:
    """Return the scores (C, S, J) after the last step by learning rate and method, with the seeds in order."""
    by_cell: dict[float, dict[str, dict[int, Floats]]] = defaultdict(lambda: defaultdict(dict))
    for folder in sorted(path.parent for path in pilot.glob("*/config.yaml")):
        spec = CellSpec.read(folder)
        *_, (_, record) = evaluations.all_evaluations(folder)
        right = np.array(record["right"], dtype=int)
        both = right.mean(axis=1), pass_at_k(right.shape[1], right.sum(axis=1), K)
        method = spec.key.method.partition("(")[0]
        by_cell[spec.settings["train"]["lr"]][method][spec.key.seed] = np.stack(both)
    scores: dict[float, dict[str, Floats]] = {}
    for rate, of_methods in sorted(by_cell.items()):
        seeds = sorted(of_methods[BASELINE])
        assert seeds == sorted(of_methods[METHOD]), "a cell of the pilot is missing"
        for method, of_seeds in of_methods.items():
            scores.setdefault(rate, {})[method] = np.stack([of_seeds[seed] for seed in seeds], axis=1)
    return scores


def chosen_rate(scores: dict[float, dict[str, Floats]]) -> float:
    """Return the rate with the highest mean Avg@16 of GRPO; within `CLOSE` of it, the lowest."""
    averages = {rate: of_methods[BASELINE][0].mean() for rate, of_methods in scores.items()}
    best = max(averages.values())
    return min(rate for rate, average in averages.items() if average >= best - CLOSE)


def designs(scores: dict[float, dict[str, Floats]]) -> dict[str, float]:
    """Return the power of each design at the chosen rate; the covariance of seeds is the mean over the rates."""
    effects = {rate: components(of_methods[METHOD] - of_methods[BASELINE]) for rate, of_methods in scores.items()}
    effect: dict[str, Any] = effects[chosen_rate(scores)]
    effect = effect | {
        "mean": np.array([0.0, DIFFERENCE]),
        "seeds": np.mean([each["seeds"] for each in effects.values()], axis=0),
    }
    shares = {}
    for methods, seeds, problems in itertools.product(COMPARED, SEEDS, PROBLEMS):
        words = f"{plural(methods, 'method')}, {seeds} seeds, {problems} problems"
        shares[words] = power(effect, seeds, problems, methods)
    return shares


def decision(pilot: Path) -> dict[str, Any]:
    """Return the pilot's means over seeds and problems, the learning rate, and the power of the designs."""
    scores = last_scores(pilot)
    means = {}
    for rate, of_methods in scores.items():
        for method, x_CSJ in of_methods.items():
            names = ("Avg@16", f"Pass@{K}")
            means[f"{method}, {rate:g}"] = dict(zip(names, x_CSJ.mean(axis=(1, 2)).round(4).tolist(), strict=True))
    return {"means": means, "rate": chosen_rate(scores), "power": designs(scores)}


if __name__ == "__main__":
    decided = json.dumps(decision(Path(sys.argv[1])), indent=1)
    files.write_text(DECISION, decided + "\n")
    print(decided)
