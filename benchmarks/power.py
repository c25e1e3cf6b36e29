"""The power of designs of the demo: how likely Clip_B's gain over GRPO gets the verdict `wins`, and in which time.

    python -m benchmarks.power TIMED PILOT...    # folders of cells: first estimate times and effects from them
    python -m benchmarks.power                   # simulate all designs with the estimates that are kept

TIMED has cells of all methods of the demo, whose time records give the relative cost of steps and evaluations. Each
PILOT has cells of GRPO and Clip_B. docs/evidence/demo.md has the rule that chooses from the table.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.base import files
from harness.cells import evaluation_files
from harness.cells.log import MetricsLog
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.statistics import Floats, crossed_p_value, pass_at_k

REFERENCE = Path(__file__).parent.parent / "results/reference/demo-power"
ESTIMATES, TABLE = REFERENCE / "estimates.json", REFERENCE / "designs.md"
BASELINE, METHOD, K = "grpo", "clip_b", 16
METHODS, LEVEL = 6, 0.05  # Holm's factor is at most the number of methods besides GRPO: the power is a lower bound
STEPS, SEEDS, EVALUATIONS, PROBLEMS = (40, 50, 60, 80, 100), (3, 4, 5, 6, 7, 8), (2, 3), (128, 256, 512)
HEADING = (
    "| steps | seeds | evaluations | problems | minutes | power |",
    "| ---: | ---: | ---: | ---: | ---: | ---: |",
)
EXPERIMENTS = 1000
LEAST_SEEDS = 3  # of an estimate
Design = tuple[int, int, int, int]  # steps, seeds, evaluations, problems
# The demo of 23 November 2026, and its time on two idle cores, in which the base model is made first.
BEFORE, BEFORE_MINUTES, BASE_MODEL_MINUTES = (100, 3, 3, 256), 6.7, 0.5

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
    values, vectors = np.linalg.eigh(np.array(covariance))
    return np.array((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T)


def is_win(x_CSJ: Floats) -> bool:
    """Return whether the gain in Pass@16 is significant after the correction, and no loss in Avg@K is."""
    p_C = [METHODS * (crossed_p_value(x_SJ) or 0.0) for x_SJ in x_CSJ]
    avg, passed = x_CSJ.mean(axis=(1, 2))
    return bool(passed > 0 and p_C[1] < LEVEL and not (avg < 0 and p_C[0] < LEVEL))


def power(effect: Mapping[str, Any], seeds: int, problems: int, experiments: int = EXPERIMENTS) -> float:
    """Return the share of simulated experiments in which the method wins."""
    random = np.random.default_rng(0)
    shapes = {"seeds": (seeds, 1), "problems": (1, problems), "residuals": (seeds, problems)}
    roots = {name: root(effect[name]) for name in shapes}
    wins = 0
    for _ in range(experiments):
        parts = [random.standard_normal((*shape, 2)) @ roots[name] for name, shape in shapes.items()]
        wins += is_win(np.moveaxis(effect["mean"] + parts[0] + parts[1] + parts[2], 2, 0))
    return wins / experiments


def effects(pilots: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return the components of Clip_B's difference from GRPO by steps, from all seeds that were evaluated there."""
    scores: dict[int, dict[tuple[str, int], Floats]] = defaultdict(dict)
    for path in sorted(config for pilot in pilots for config in pilot.glob("*/config.yaml")):
        key = CellSpec.read(path.parent).key
        for _, record in evaluation_files.all_evaluations(path.parent):
            right = np.array(record["right"], dtype=int)
            both = right.mean(axis=1), pass_at_k(right.shape[1], right.sum(axis=1), K)
            scores[record["step"]][key.method.partition("(")[0], key.seed] = np.stack(both)
    found = {}
    for step, of_step in sorted(scores.items()):
        seeds = sorted(seed for method, seed in of_step if method == METHOD and (BASELINE, seed) in of_step)
        if step in STEPS and len(seeds) >= LEAST_SEEDS:
            differences = [of_step[METHOD, seed] - of_step[BASELINE, seed] for seed in seeds]
            parts = components(np.stack(differences, axis=1))
            found[str(step)] = {"of": seeds} | {name: part.tolist() for name, part in parts.items()}
    return found


def times(timed: Path) -> dict[str, Any]:
    """Return the mean seconds of the first steps together, of one evaluation, and of the rest of a cell."""
    steps, evaluations, rests = [], [], []
    for path in sorted(timed.glob("*/config.yaml")):
        records = [record["metrics"] for record in MetricsLog(path.parent).read()]
        of_evaluations = np.array([metrics.get("time/evaluate_s", 0.0) for metrics in records])
        seconds = [sum(metrics[name] for name in metrics if name.startswith("time/")) for metrics in records]
        steps.append(np.cumsum((seconds - of_evaluations)[-BEFORE[0] :]))
        evaluations.append(of_evaluations.sum() / BEFORE[2])
        rests.append((State.read(path.parent).seconds or 0.0) - sum(seconds))
    return {"steps": np.mean(steps, axis=0).tolist(), "evaluation": np.mean(evaluations), "rest": np.mean(rests)}


def minutes_of(design: Design, spent: Mapping[str, Any]) -> float:
    """Return the minutes of a design on two idle cores: those of the demo before, scaled by the cost of the cells."""
    costs = []
    for steps, seeds, evaluations, problems in (design, BEFORE):
        of_evaluations = evaluations * spent["evaluation"] * problems / BEFORE[3]
        costs.append(seeds * (spent["steps"][steps - 1] + of_evaluations + spent["rest"]))
    return float(BASE_MODEL_MINUTES + (BEFORE_MINUTES - BASE_MODEL_MINUTES) * costs[0] / costs[1])


def rows(estimates: Mapping[str, Any], designs: Iterable[Design]) -> Iterator[str]:
    """Return each design with its minutes and its power as a line of a table."""
    # A few seeds give their covariance only roughly, so it is the mean over all numbers of steps.
    effects_of = estimates["effects"]
    weights = [len(effect["of"]) - 1 for effect in effects_of.values()]
    pooled = np.average([effect["seeds"] for effect in effects_of.values()], axis=0, weights=weights)
    simulated = functools.cache(lambda *of: power({**effects_of[str(of[0])], "seeds": pooled}, *of[1:]))
    for steps, seeds, evaluations, problems in designs:
        minutes = minutes_of((steps, seeds, evaluations, problems), estimates["times"])
        share = simulated(steps, seeds, problems)
        yield f"| {steps} | {seeds} | {evaluations} | {problems} | {minutes:.1f} | {share:.2f} |"


if __name__ == "__main__":
    if len(sys.argv) > 2:
        timed, *pilots = map(Path, sys.argv[1:])
        files.write_text(ESTIMATES, json.dumps({"times": times(timed), "effects": effects(pilots)}, indent=1) + "\n")
    kept = json.loads(ESTIMATES.read_text())
    every = itertools.product(map(int, kept["effects"]), SEEDS, EVALUATIONS, PROBLEMS)
    files.write_text(TABLE, "\n".join([*HEADING, *rows(kept, every)]) + "\n")
