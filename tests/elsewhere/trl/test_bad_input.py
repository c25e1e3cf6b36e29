"""Refusals of EntrobenchTrainer: methods that TRL cannot run, groups, rewards, and another version of TRL.

Contradictions between a method and GRPOConfig, and checkpoints of another method, are in test_trl.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from trl_trainers import arguments, door, trainer_of

import baselines
import entrobench
from harness.methods.composition import Method
from harness.methods.refusals import trl_refusal

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
REFUSED = [name for name in baselines.METHODS if trl_refusal(Method.of(name, baselines.table())) is not None]


def of_values(*values: float | None) -> Callable[..., list[float | None]]:
    """Return a reward function that gives some values in turn."""

    def reward(completion_ids: Sequence[Any], **_: Any) -> list[float | None]:
        return [values[row % len(values)] for row in range(len(completion_ids))]

    reward.__name__ = f"of_{len(values)}"
    return reward


def test_methods_that_trl_cannot_run_are_refused_with_the_reason_of_the_list(tmp_path: Path) -> None:
    """A critic, the answers of a group, and the policy that sampled."""
    assert REFUSED == ["ppo", "outcome_exploration", "cue", "m2po"]
    for name in REFUSED:
        reason = trl_refusal(Method.of(name, baselines.table()))
        sentence = f"^method {name} {reason}; allowed: `entrobench list methods --for trl`$"
        with pytest.raises(entrobench.UserError, match=sentence):
            trainer_of(name, tmp_path)


def test_trainer_with_a_missing_plugin(tmp_path: Path) -> None:
    with pytest.raises(entrobench.UserError, match="no_such_plugin"):
        trainer_of("clip_b", tmp_path, plugins=["no_such_plugin"])


@pytest.mark.parametrize(
    ("spec", "least", "options"),
    [("passk", 5, {}), ("clip_b", 2, {"num_generations_eval": 1, "per_device_eval_batch_size": 8})],
)
def test_trainer_refuses_a_small_group(spec: str, least: int, options: dict[str, Any], tmp_path: Path) -> None:
    rows = Dataset.from_list([{"prompt": str(row)} for row in range(8)])
    name, size = ("num_generations_eval", 1) if options else ("num_generations", 4)
    sentence = f"{name} is {size}; method {spec} learns from groups of {least} and more"
    with pytest.raises(entrobench.UserError, match=sentence):
        trainer_of(spec, tmp_path, eval_dataset=rows, eval_strategy="no", **options)


def test_trainer_refuses_a_missing_reward(tmp_path: Path) -> None:
    rewards = [of_values(1.0, None), of_values(0.0, None, 2.0, None)]
    with pytest.raises(entrobench.UserError, match="the reward of response 1 of the rollout batch is NaN"):
        trainer_of("clip_b", tmp_path, reward=rewards).train()


def test_trainer_with_one_reward(tmp_path: Path) -> None:
    trainer = trainer_of("clip_b", tmp_path, reward=[of_values(1.0, None), of_values(None, 2.0, None, 3.0)])
    trainer.train()
    assert trainer.state.global_step == 1


def test_trainer_refuses_an_infinite_reward(tmp_path: Path) -> None:
    with pytest.raises(entrobench.UserError, match="the reward of response 2 is inf; allowed: finite numbers"):
        trainer_of("clip_b", tmp_path, reward=of_values(0.0, 1.0, float("inf"))).train()


def test_trainer_refuses_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "version", lambda package: "1.17.0")
    with pytest.warns(UserWarning, match=r"trl 1\.17\.0 is installed; .* tested with trl 1\.16\.0"):
        trainer_of("clip_b", tmp_path)
    monkeypatch.setattr(door, "version", lambda package: door.TESTED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer_of("clip_b", tmp_path)
    assert not [warning for warning in caught if "was tested with" in str(warning.message)]


def test_zero_3_is_refused(tmp_path: Path) -> None:
    class Plugin:
        zero_stage = 3

    args = arguments(tmp_path)
    args.deepspeed_plugin = Plugin()
    with pytest.raises(entrobench.UserError, match=r"ZeRO-3 releases the weights of the head .*; allowed: ZeRO-1"):
        door.settled_arguments(args, entrobench.Method("clip_b"))
