"""Options of methods that change over the steps of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from registered import method
from trainers import check_resumed, same, weights

import entrobench
from harness import config
from harness.base.errors import UserError
from harness.conformance.miniature import Size, miniature_trainer, write_model
from harness.matrix import cells
from harness.methods.refusals import trl_refusal, verl_refusal
from harness.methods.schedules import Linear
from harness.tokens.metrics import Stopwatch
from harness.train.trainer import Trainer

STEPS = 5


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", Size())
    return tmp_path / "model"


def trained(spec: str, model: Path, folder: Path) -> tuple[Trainer, list[dict[str, float]]]:
    """Return a miniature trainer after all of its steps, and their records without times."""
    trainer = miniature_trainer(method(spec), model, folder, Size(), STEPS)
    return trainer, [trainer.train_step(step, Stopwatch()) for step in range(1, STEPS + 1)]


def test_values_at_each_step(model: Path, tmp_path: Path) -> None:
    spec = "grpo(clip_high=linear(0.2, 0.4), kl_coef=linear(0, 0.1))+entropy_bonus(coefficient=linear(0.01, 0))"
    _, steps = trained(spec, model, tmp_path)
    assert [step["entropy_bonus/coefficient"] for step in steps] == pytest.approx([0.01, 0.0075, 0.005, 0.0025, 0])
    assert [step["grpo/clip_high"] for step in steps] == pytest.approx([0.2, 0.25, 0.3, 0.35, 0.4])
    assert [step["grpo/kl_coef"] for step in steps] == pytest.approx([0, 0.025, 0.05, 0.075, 0.1])


@pytest.mark.parametrize("ends", [(0.1, 0.3), (0.3, 0.1), (1e-3, 7e5), (0.1, 0.1)])
def test_linear_is_exact_at_both_ends(ends: tuple[float, float]) -> None:
    schedule = Linear(*ends)
    assert (schedule.at(0), schedule.at(1)) == ends
    assert all(min(ends) <= schedule.at(number / 997) <= max(ends) for number in range(998))


def test_run_of_one_step_has_the_first_value() -> None:
    scheduled = method("entropy_bonus(coefficient=linear(0.3, 0.1))")
    scheduled.start_step(1, 1)
    assert vars(scheduled.controls["entropy_bonus"])["coefficient"] == 0.3


def test_loss_is_that_of_the_value_at_the_step(model: Path, tmp_path: Path) -> None:
    """A schedule trains as a method does that is built at each step with the number of that step."""
    trainer, _ = trained("entropy_bonus(coefficient=linear(0.5, 0.1))", model, tmp_path)
    by_hand = miniature_trainer(method("entropy_bonus(coefficient=0.5)"), model, tmp_path, Size(), STEPS)
    for step in range(1, STEPS + 1):
        by_hand.method = method(f"entropy_bonus(coefficient={Linear(0.5, 0.1).at((step - 1) / (STEPS - 1))!r})")
        by_hand.train_step(step, Stopwatch())
    assert same(weights(trainer), weights(by_hand))


def test_constant_schedule_has_the_bits_of_the_constant(model: Path, tmp_path: Path) -> None:
    spec = "adaptive_entropy(target=9, highest=1, delta={})+clip_b(mu={})"
    scheduled, steps = trained(spec.format("linear(0.01, 0.01)", "linear(1.3, 1.3)"), model, tmp_path)
    constant, expected = trained(spec.format(0.01, 1.3), model, tmp_path)
    assert same(weights(scheduled), weights(constant))
    for step, plain in zip(steps, expected, strict=True):
        assert (step.pop("adaptive_entropy/delta"), step.pop("clip_b/mu")) == (0.01, 1.3)
        assert step == plain


@pytest.mark.slow
def test_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    spec = "clip_b(share=linear(0.1, 0.01))+entropy_bonus(coefficient=linear(0.2, 0))"
    check_resumed(tmp_path, spec, killed_at=2)


# Identity


def test_schedule_is_part_of_the_identity() -> None:
    specs = ["0.01", "linear(0.01, 0)", "linear(0.01, 0.005)", "linear(0, 0.01)"]
    identities = [method(f"entropy_bonus(coefficient={value})").identity() for value in specs]
    assert identities[1][1]["coefficient"] == "linear(0.01, 0.0)"
    assert all(identities.count(identity) == 1 for identity in identities)
    scheduled = method("entropy_bonus(coefficient = linear( 1e-2 ,0) )")
    scheduled.start_step(3, 3)
    assert scheduled.identity() == identities[1]


def test_schedule_in_method_options() -> None:
    override = "method_options={entropy_bonus: {coefficient: 'linear(0.01, 0)'}}"
    [_, cell] = cells(config.load_config("smoke", ["methods=[grpo, entropy_bonus]", override]))
    [_, control] = cell.identity["method"]
    assert control["coefficient"] == "linear(0.01, 0.0)"


# Refusals


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("grpo(lr=linear(1e-3, 0))", "grpo.lr is 'linear(1e-3, 0)', but it is the same in all steps; write one number"),
        ("dph_rl(base_share=linear(0.1, 0.5))", "dph_rl.base_share is 'linear(0.1, 0.5)', but it is the same in all"),
        ("ppo(critic_lr=linear(1, 2))", "ppo.critic_lr is 'linear(1, 2)', but it is the same in all steps"),
        ("clip_servo(start=linear(0.1, 0.2))", "clip_servo.start is 'linear(0.1, 0.2)', but it is the same in all"),
        ("repo_r(zeta=linear(0.01, 1))", "repo_r.zeta is 'linear(0.01, 1)', but it is the same in all steps"),
        ("stare(positive=linear(1.1, 1.4))", "stare.positive is 'linear(1.1, 1.4)', but it is the same in all steps"),
        ("stare(variant=c2, negative=linear(1, 0.5))", "stare.negative is 'linear(1, 0.5)', but it is the same in all"),
        ("entropy_bonus(coefficient=linear(-1, 0))", "entropy_bonus.coefficient is -1.0; allowed: 0 and more"),
        ("entropy_bonus(coefficient=linear(0, -1))", "entropy_bonus.coefficient is -1.0; allowed: 0 and more"),
        ("entropy_bonus(coefficient=linear(0.1))", "write linear(FIRST, LAST) with two finite numbers"),
        ("entropy_bonus(coefficient=linear(0.1, .inf))", "write linear(FIRST, LAST) with two finite numbers"),
        ("entropy_bonus(coefficient=linear(0.1, true))", "write linear(FIRST, LAST) with two finite numbers"),
        ("entropy_bonus(coefficient=linear(1, 2, 3))", "write linear(FIRST, LAST) with two finite numbers"),
        ("adaptive_entropy(lowest=linear(0, 1))", "start is 0.0; allowed: from lowest (1.0)"),
        ("bbg(k=linear(2, 4))", "bbg.k is 'linear(2, 4)'; it must be a whole number"),
        ("clip_b(mode=linear(1, 2))", "clip_b.mode is 'linear(1, 2)'; allowed: "),
        ("grpo(divide_by_std=linear(1, 0))", "grpo.divide_by_std is 'linear(1, 0)'; it must be true or false"),
        ("entropy_bonus(coeficient=linear(1, 0))", "unknown key entropy_bonus.coeficient; allowed: "),
    ],
)
def test_schedules_that_cannot_be(spec: str, sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        method(spec)


def test_schedule_of_a_task() -> None:
    with pytest.raises(UserError, match=r"countdown.count is 'linear\(3, 4\)'; it must be a whole number"):
        cells(config.load_config("smoke", ["tasks=['countdown(count=linear(3, 4))']"]))


def test_other_trainers_refuse_schedules() -> None:
    spec = "entropy_bonus(coefficient=linear(0.01, 0))"
    reason = "changes entropy_bonus.coefficient over the steps of a run, as only entrobench's own trainer does"
    for refusal in (trl_refusal, verl_refusal):
        assert (refusal(method(spec)) or "").startswith(reason)
    with pytest.raises(entrobench.UserError, match=reason):
        entrobench.Method(spec)
    with pytest.raises(UserError, match=rf"train.backend is 'trl', but method .* {reason}"):
        cells(config.load_config("smoke", [f"methods=[grpo, '{spec}']", "train.backend=trl"]))
