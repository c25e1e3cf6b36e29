"""The power of the demo's designs: its estimates against brute force, its simulation against a closed form."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from scipy.stats import nct, t

from harness import config
from studies.demo import power


def test_components_equal_the_products_of_differences_between_seeds_and_problems() -> None:
    x_CSJ = np.random.default_rng(0).normal(size=(2, 3, 4)) * [[[1.0]], [[2.0]]] + np.arange(3)[:, None]
    of_seeds, of_problems, of_residuals = [], [], []
    for (s, r), (j, i) in itertools.product(itertools.permutations(range(3), 2), itertools.permutations(range(4), 2)):
        seed_j, seed_i = x_CSJ[:, s, j] - x_CSJ[:, r, j], x_CSJ[:, s, i] - x_CSJ[:, r, i]
        problem_s, problem_r = x_CSJ[:, s, j] - x_CSJ[:, s, i], x_CSJ[:, r, j] - x_CSJ[:, r, i]
        of_seeds.append(np.outer(seed_j, seed_i) / 2)
        of_problems.append(np.outer(problem_s, problem_r) / 2)
        of_residuals.append(np.outer(seed_j - seed_i, seed_j - seed_i) / 4)
    found = power.components(x_CSJ)
    assert found["mean"] == pytest.approx(x_CSJ.reshape(2, -1).mean(axis=1))
    assert found["seeds"] == pytest.approx(np.mean(of_seeds, axis=0))
    assert found["problems"] == pytest.approx(np.mean(of_problems, axis=0))
    assert found["residuals"] == pytest.approx(np.mean(of_residuals, axis=0))


def test_power_equals_the_one_of_a_t_test_where_only_seeds_differ() -> None:
    effect = {"mean": [1.0, 0.1], "seeds": np.diag([0.01, 0.0025]), "problems": np.zeros((2, 2))}
    critical = t(4).ppf(1 - 0.05 / 6 / 2)
    exact = nct(4, 0.1 / 0.05 * np.sqrt(5)).sf(critical)
    share = power.power({**effect, "residuals": np.zeros((2, 2))}, seeds=5, problems=3)
    assert share == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / power.EXPERIMENTS))


def test_is_win_with_a_loss_in_avg_at_k() -> None:
    noise_SJ = np.random.default_rng(0).normal(0, 0.01, (5, 30))
    for avg, passed, wins in ((0.0, 0.2, True), (0.1, 0.2, True), (-0.1, 0.2, False), (0.0, -0.2, False)):
        assert power.is_win(np.stack([noise_SJ + avg, noise_SJ + passed])) is wins


def test_row_of_the_demo() -> None:
    demo, estimates = config.load_config("demo"), json.loads(power.ESTIMATES.read_text())
    assert demo.eval.problems is not None
    design = (demo.train.steps, len(demo.seeds), demo.eval.problems)
    assert power.row(estimates, *design) in power.TABLE.read_text().splitlines()
    assert power.minutes_of(*power.BEFORE) == pytest.approx(power.BEFORE_MINUTES)
    assert not {seed for effect in estimates.values() for seed in effect["of"]} & {*demo.seeds}
