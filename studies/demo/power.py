"""The power of designs of the demo: how likely Clip_B's gain over GRPO gets the verdict `wins`, and in which time.

    python -m studies.demo.power PILOT...    # folders with cells of GRPO and Clip_B: first estimate the effects
    python -m studies.demo.power             # simulate all designs with the estimates that are kept

docs/evidence/demo.md has the rule that chooses from the table.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.base import files
from harness.cells import evaluations
from harness.cells.evaluations import pass_at_k
from harness.cells.spec import CellSpec
from harness.table.statistics import Floats, crossed_p_value
from harness.table.verdict import WINS, significance, verdict

REFERENCE = Path(__file__).parents[2] / "results/reference/demo-power"
ESTIMATES, TABLE = REFERENCE / "estimates.json", REFERENCE / "designs.md"
BASELINE, METHOD, K = "grpo", "clip_b", 16
HOLM = 6  # the factor of the smallest of six p-values, the largest that there is: the power is a lower bound
SEEDS, PROBLEMS = (3, 4, 5, 6, 7, 8), (128, 256, 512)
EXPERIMENTS = 1000
# The demo of 23 November 2026: steps, seeds, problems. Its minutes on two idle cores, and those of its base model.
BEFORE, BEFORE_MINUTES, BASE_MODEL_MINUTES = (100, 3, 256), 6.7, 0.5
# Means of its 21 cells by their records, with other work on both cores, so that only ratios count: seconds of the first
# steps together, of three evaluations, and of the rest of a cell.
SECONDS = {40: 38.5, 50: 45.5, 60: 52.4, 80: 66.8, 100: 81.7}
EVALUATIONS, REST = 5.84, 2.31

# Axes: C the scores Avg@K and Pass@16, S seed, J problem.


def components(x_CSJ: Floats) -> dict[str, Any]:
    """Return the mean of paired differences, and the covariances of their random effects between the two scores."""
    _, seeds, problems = x_CSJ.shape
    x_CS, x_CJ, mean_C = x_CSJ.mean(axis=2), x_CSJ.mean(axis=1), x_CSJ.mean(axis=(1, 2))
    residual_CSJ = x_CSJ - x_CS[:, :, None] - x_CJ[:, None] + mean_C[:, None, None]
    of_residuals = np.einsum("csj,dsj->cd", residual_CSJ, residual_CSJ) / ((seeds - 1) * (problems - 1))
    of_seeds, of_problems = np.cov(x_CS) - of_residuals / problems, np.cov(x_CJ) - of_residuals / seeds
    return {"mean": mean_C, "seeds": of_seeds, "problems": of_problems, "residuals": of_residuals}


def root(covariance: Any) -> Floats:
    """Return the symmetric square root of a covariance; negative variances, which estimates may have, count as 0."""
    values, vectors = np.linalg.eigh(covariance)
    return np.array((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T)


def is_win(x_CSJ: Floats, factor: int = HOLM) -> bool:
    """Return whether a method with these differences wins, as far as it can tell without the other methods."""
    avg, passed = (significance(x_SJ.mean(), factor * (crossed_p_value(x_SJ) or math.nan)) for x_SJ in x_CSJ)
    return verdict(passed, avg) == WINS


def power(effect: Mapping[str, Any], seeds: int, problems: int, factor: int = HOLM) -> float:
    """Return the share of simulated experiments in which the method wins."""
    random = np.random.default_rng(0)
    shapes = {"seeds": (seeds, 1), "problems": (1, problems), "residuals": (seeds, problems)}
    roots = {name: root(effect[name]) for name in shapes}
    wins = 0
    for _ in range(EXPERIMENTS):
        parts = [random.standard_normal((*shape, 2)) @ roots[name] for name, shape in shapes.items()]
        wins += is_win(np.moveaxis(effect["mean"] + parts[0] + parts[1] + parts[2], 2, 0), factor)
    return wins / EXPERIMENTS


def effects(pilots: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return the components of Clip_B's difference from GRPO by steps, from all seeds that were evaluated there."""
    scores: dict[int, dict[tuple[str, int], Floats]] = defaultdict(dict)
    for path in sorted(config for pilot in pilots for config in pilot.glob("*/config.yaml")):
        key = CellSpec.read(path.parent).key
        for _, record in evaluations.all_evaluations(path.parent):
            right = np.array(record["right"], dtype=int)
            both = right.mean(axis=1), pass_at_k(right.shape[1], right.sum(axis=1), K)
            scores[record["step"]][key.method.partition("(")[0], key.seed] = np.stack(both)
    found = {}
    for step, of_step in sorted(scores.items()):
        seeds = sorted(seed for method, seed in of_step if method == METHOD and (BASELINE, seed) in of_step)
        if step in SECONDS and len(seeds) >= min(SEEDS):
            differences = [of_step[METHOD, seed] - of_step[BASELINE, seed] for seed in seeds]
            parts = components(np.stack(differences, axis=1))
            found[str(step)] = {"of": seeds} | {name: part.tolist() for name, part in parts.items()}
    return found


def minutes_of(steps: int, seeds: int, problems: int) -> float:
    """Return the minutes of a design on two idle cores: those of the demo before, scaled by the cost of the cells."""
    designs = ((steps, seeds, problems), BEFORE)
    ours, before = (S * (SECONDS[n] + EVALUATIONS * J / BEFORE[2] + REST) for n, S, J in designs)
    return BASE_MODEL_MINUTES + (BEFORE_MINUTES - BASE_MODEL_MINUTES) * ours / before


def row(estimates: Mapping[str, Any], steps: int, seeds: int, problems: int) -> str:
    """Return a design with its minutes and its power as a line of the table."""
    # A few seeds give their covariance only roughly, so it is the mean over all numbers of steps.
    covariances = [effect["seeds"] for effect in estimates.values()]
    pooled = np.average(covariances, axis=0, weights=[len(effect["of"]) - 1 for effect in estimates.values()])
    share = power({**estimates[str(steps)], "seeds": pooled}, seeds, problems)
    return f"| {steps} | {seeds} | {problems} | {minutes_of(steps, seeds, problems):.1f} | {share:.2f} |"


if __name__ == "__main__":
    if sys.argv[1:]:
        files.write_text(ESTIMATES, json.dumps(effects(map(Path, sys.argv[1:])), indent=1) + "\n")
    kept = json.loads(ESTIMATES.read_text())
    lines = ["| steps | seeds | problems | minutes | power |", "| ---: " * 5 + "|"]
    lines += [row(kept, *size) for size in itertools.product(map(int, kept), SEEDS, PROBLEMS)]
    files.write_text(TABLE, "\n".join(lines) + "\n")
