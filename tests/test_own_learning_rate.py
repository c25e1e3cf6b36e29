"""A learning rate that a method sets itself: the option `lr` of every objective."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from boards import json_rows, show_table, smoke_matrix
from commands import run_command
from registered import method
from trainers import build, records, same, weights

import baselines
import entrobench
from harness import config
from harness.base.errors import UserError
from harness.base.schema import number, typed
from harness.conformance import miniature
from harness.matrix import cells
from harness.methods import refusals as doors
from harness.methods.verbs import Control
from harness.tracking.sync import params_of

OTHER = "3e-3"  # a rate that no configuration here has


def rate_of(spec: str) -> float:
    return method(spec).learning_rate(1e-6)


@pytest.mark.parametrize("name", baselines.METHODS)
def test_objectives_have_the_option_lr(name: str) -> None:
    plain = method(name)
    assert plain.objective.lr is None
    assert plain.learning_rate(0.5) == 0.5
    assert "lr" not in plain.identity()[0]


def test_learning_rate_of_a_composition() -> None:
    assert rate_of("grpo(lr=3e-4)") == 3e-4
    assert rate_of("grpo(lr=3.0e-4)+clip_b(share=0.02)") == 3e-4
    assert rate_of("clip_b+ppo(lr=2)") == 2
    assert rate_of("grpo(lr=null)") == 1e-6


@dataclasses.dataclass(frozen=True)
class Paced(Control):
    """A control of a plugin with an option of that name."""

    lr: float = number(0.1, above=0)


def test_control_with_an_option_lr() -> None:
    assert typed(Paced(), {"lr": 0.2}, "paced.").lr == 0.2


# The identity of a cell


def planned(*overrides: str) -> list[str]:
    return [cell.id for cell in cells(config.load_config("smoke", overrides))]


def test_cell_id_by_learning_rate() -> None:
    plain, other = planned("methods=[grpo,grpo(lr=3e-3)]")
    [same_rate] = planned("methods=[grpo(lr=1.0e-3)]", "baseline=grpo(lr=1.0e-3)")
    assert plain == same_rate != other
    below_a_control = planned("methods=[grpo,clip_b,grpo(lr=3e-3)+clip_b]")
    assert len({*below_a_control, other}) == 4


def test_cells_refuse_an_axis_of_rates() -> None:
    with pytest.raises(UserError, match=r"axes varies train.lr, but method 'grpo\(lr=3e-3\)' has a learning rate"):
        planned("methods=[grpo,grpo(lr=3e-3)]", "axes={train.lr: [1e-3, 2e-3]}")


# Training


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["grpo", "grpo+clip_b(share=0.05)", "ppo"])
def test_trainer_uses_the_learning_rate_of_the_method(spec: str, tmp_path: Path) -> None:
    """With its warm-up, bit for bit; a critic keeps its own."""
    shared = ["train.warmup_steps=3", "train.steps=2"]
    base, plus, rest = spec.partition("+")
    alone = build(tmp_path / "alone", f"{base}(lr={OTHER}){plus}{rest}", *shared)
    by_config = build(tmp_path / "config", spec, *shared, f"train.lr={OTHER}")
    unset = build(tmp_path / "unset", spec, *shared)
    for trainer in (alone, by_config, unset):
        trainer.run(lambda step: None)
    assert records(tmp_path / "alone") == records(tmp_path / "config")
    assert same(weights(alone), weights(by_config))
    assert not same(weights(alone), weights(unset))


def test_conformance_with_a_learning_rate(tmp_path: Path) -> None:
    size = miniature.Size()
    miniature.write_model(tmp_path / "model", size)
    for spec, rate in (("grpo", size.lr), ("grpo(lr=2e-3)", 2e-3)):
        trainer = miniature.miniature_trainer(method(spec), tmp_path / "model", tmp_path, size, steps=1)
        assert trainer.policy.lr == rate


# Other trainers


def test_learning_rate_in_a_loop_of_ones_own() -> None:
    where = r"\(TRL: GRPOConfig\.learning_rate, verl: actor_rollout_ref\.actor\.optim\.lr\)"
    with pytest.raises(UserError, match=f"the learning rate 0.0003, which the trainer's own optim.* {where}"):
        entrobench.Method("grpo(lr=3e-4)+clip_b(share=0.02)")


@pytest.mark.parametrize("trainer", doors.REFUSALS)
def test_refusals_of_learning_rates(trainer: str) -> None:
    refusal = doors.REFUSALS[trainer]
    assert refusal(method("grpo")) is None
    assert "sets the learning rate 0.0003" in (refusal(method("grpo(lr=3e-4)")) or "")


# Output


@pytest.mark.slow
def test_learning_rate_in_table_plan_and_mlflow(tmp_path: Path, mlflow_uri: str) -> None:
    methods = ["grpo", "grpo(lr=3e-3)", "grpo(lr=3e-3)+clip_b(share=0.02)"]
    made = smoke_matrix(tmp_path, mlflow_uri, f"methods=[{','.join(methods)}]").send_all()
    rows = json_rows("--experiment", "made", "--uri", mlflow_uri)
    assert [row["method"] for row in rows if row["method"] != "base model"] == methods
    assert "grpo(lr=3e-3)+clip_b" in show_table("--experiment", "made", "--uri", mlflow_uri)
    plain, with_rate, _ = (params_of(cell.spec) for cell in made.cells[:3])
    assert "method.grpo.lr" not in plain
    assert with_rate["method.grpo.lr"] == "0.003"
    # That of the configuration, which is the same in all cells of a matrix: by it, tables know which runs belong
    # together.
    assert plain["train.lr"] == with_rate["train.lr"] == "0.001"

    assert methods[1] in run_command("plan", *made.given)
