"""The experiments on the theory: exact where theory is exact, repeatable, and complete on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harness import cli, config
from harness.base.errors import UserError
from harness.commands import dynamics as command
from harness.theory import theory
from harness.theory.explain import batch_of, build_trainer
from harness.train.trainer import Trainer
from harness.verify.pool import VerifierPool

SMALL = ["train.prompts=8", "train.group=8", "train.updates=2", "train.lr=1e-3", "train.warmup_steps=0", "seeds=[0]"]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    torch.set_num_threads(1)
    folder = str(tmp_path_factory.mktemp("cell"))
    return build_trainer(config.load_config("demo", SMALL), "grpo", folder, VerifierPool())


def test_predictions_of_logit_steps_are_exact_in_the_limit_and_second_order_carries_further(trainer: Trainer) -> None:
    rows = theory.logit_steps(trainer, batch_of(trainer, 1))
    assert rows[0]["alpha"] == 1e-3
    assert rows[0]["slope"] == pytest.approx(1, abs=2e-3)
    assert rows[0]["correlation"] > 0.99999
    for row in rows[:3]:
        assert row["error_second"] < row["error_first"]
    # The errors are of second and of third order: ten times the step gives ten and a hundred times the relative error.
    assert rows[1]["error_first"] / rows[0]["error_first"] == pytest.approx(10, rel=0.1)
    assert rows[1]["error_second"] / rows[0]["error_second"] == pytest.approx(100, rel=0.1)


def test_optimiser_steps_derivative(trainer: Trainer) -> None:
    weights = {name: x.clone() for name, x in trainer.policy.module.state_dict().items()}
    lr = trainer.policy.lr
    rows = theory.optimiser_steps(trainer, batch_of(trainer, 1))
    assert rows[0]["lr"] == 1e-5
    # Two steps tell how steep it is before the first one, as their errors are of second order.
    (near, first), (far, second) = ((row["lr"], row["measured"] / row["lr"]) for row in rows[:2])
    slope = (first * far - second * near) / (far - near)
    assert slope == pytest.approx(rows[0]["derivative"] / near, rel=0.1)
    errors = [abs(row["measured"] / row["derivative"] - 1) for row in rows]
    assert errors[-1] > 10 * errors[0]
    assert trainer.policy.lr == lr
    assert all(torch.equal(x, weights[name]) for name, x in trainer.policy.module.state_dict().items())


def test_optimiser_steps_from_the_same_weights(tmp_path: Path, trainer: Trainer) -> None:
    settings = config.load_config("demo", [*SMALL, "hardware.offload=true"])
    offloading = build_trainer(settings, "grpo", str(tmp_path), VerifierPool())
    assert offloading.policy.masters is not offloading.policy.weights
    rows = theory.optimiser_steps(offloading, batch_of(offloading, 1))
    expected = theory.optimiser_steps(trainer, batch_of(trainer, 1))
    assert [row["measured"] for row in rows] == pytest.approx([row["measured"] for row in expected], rel=1e-4)


def test_quadrant_is_trained_on_alone() -> None:
    settings = config.load_config("demo", SMALL)
    for keep in theory.QUADRANTS:
        trained = build_trainer(settings, f"grpo+quadrant(keep=[{keep}], by=s_star)", "unused", VerifierPool())
        batch = batch_of(trained, 1)
        old = trained.stats_before(batch, trained.method.needs)
        signal = trained.method.signal(old, batch, [batch])
        assert 0 < signal.weights_T.count_nonzero() < len(signal.weights_T)
        for advantage, s_star, weight in zip(signal.advantages_T, old.discriminator, signal.weights_T, strict=True):
            side = "positive" if advantage > 0 else "negative" if advantage < 0 else "none"
            place = "above" if s_star > 0 else "below" if s_star < 0 else "at"
            assert weight == (keep == f"{side}_{place}")


@pytest.mark.slow
def test_dynamics_writes_its_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = []
    for _ in range(2):
        assert command.call(cli.parse_command(["dynamics", "demo", *SMALL, "--steps", "2"])) == 0
        result = json.loads((tmp_path / "results/demo/dynamics/dynamics.json").read_text())
        runs.append(result)
    assert runs[0] == runs[1]
    kept = {(row["keep"], row["step"]) for row in result["masks"]}
    assert kept == {(keep, step) for keep in ("all", *theory.QUADRANTS) for step in (1, 2)}
    assert len({row["entropy"] for row in result["masks"] if row["step"] == 1}) == 1  # one model, one batch
    on, off, corrected = (row["mean"] for row in result["corollaries"][1:])
    assert max(abs(on), abs(corrected)) < abs(off)


def test_dynamics_of_groups_of_one() -> None:
    with pytest.raises(UserError, match=r"train\.group is 1"):
        command.call(cli.parse_command(["dynamics", "demo", "train.group=1"]))
