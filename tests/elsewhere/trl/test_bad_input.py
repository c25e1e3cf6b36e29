"""Refusals of EntrobenchTrainer: methods that TRL cannot run, settings, rewards, and another version of TRL.

Checkpoints of another method are in test_trl.py.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from trl_trainers import arguments, door, trainer_of

import baselines
import entrobench
from harness.elsewhere.portable import PortableMethod
from harness.methods.composition import Method
from harness.methods.refusals import trl_refusal

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
REFUSED = [name for name in baselines.METHODS if trl_refusal(Method.of(name, baselines.table())) is not None]


ROWS = Dataset.from_list([{"prompt": str(row)} for row in range(8)])
SMALL_EVALUATION = {"num_generations_eval": 1, "per_device_eval_batch_size": 8}


def of_values(*values: float | None) -> Callable[..., list[float | None]]:
    """Return a reward function that gives some values in turn."""

    def reward(completion_ids: Sequence[Any], **_: Any) -> list[float | None]:
        return [values[row % len(values)] for row in range(len(completion_ids))]

    reward.__name__ = f"of_{len(values)}"
    return reward


def test_methods_that_trl_cannot_run_are_refused_with_the_reason_of_the_list(tmp_path: Path) -> None:
    """A critic, answers, the model before training, the policy that sampled, and two statistics of likely tokens."""
    assert REFUSED == ["ppo", "a2po", "dph_rl", "outcome_exploration", "cue", "m2po"]
    for name in [*REFUSED, "lp_reg+tre"]:
        sentence = f"method {name} {trl_refusal(Method.of(name, baselines.table()))}"
        with pytest.raises(entrobench.UserError, match=f"^{re.escape(sentence)}(; allowed: `entrobench list|$)"):
            trainer_of(name, tmp_path)


@pytest.mark.parametrize(
    ("spec", "options", "sentence"),
    [
        ("clip_b", {"plugins": ["no_such_plugin"]}, "no_such_plugin"),
        ("passk", {}, "num_generations is 4; method passk learns from groups of 5 and more"),
        ("clip_b", SMALL_EVALUATION, "num_generations_eval is 1; method clip_b learns from groups of 2 and more"),
        # Contradictions between a method and GRPOConfig
        (
            "clip_b",
            {"loss_type": "cispo"},
            "loss_type is 'cispo', but method clip_b decides that; leave it at 'dapo' and",
        ),
        ("clip_b", {"epsilon_high": 0.28}, "epsilon_high is 0.28, but method clip_b decides that; .* clip_high"),
        ("clip_b", {"beta": 0.1}, "beta is 0.1, but method clip_b decides that; .* kl_coef"),
        ("grpo(kl_coef=0.2)", {"beta": 0.1}, "beta is 0.1, but method"),
        ("clip_b", {"scale_rewards": False}, "scale_rewards is 'none', but .* dr_grpo"),
        ("clip_b", {"entropy_coef": 0.1}, "entropy_coef is 0.1, but .* the control entropy_bonus"),
        (
            "clip_b",
            {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "per_device_train_batch_size": 4},
            "steps_per_generation is 2; it must be a multiple of gradient_accumulation_steps, 4",
        ),
    ],
)
def test_trainer_refuses_settings(spec: str, options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(entrobench.UserError, match=sentence):
        trainer_of(spec, tmp_path, eval_dataset=ROWS, eval_strategy="no", **options)


@pytest.mark.parametrize(
    ("rewards", "sentence"),
    [
        (
            [of_values(1.0, None), of_values(0.0, None, 2.0, None)],
            "the reward of response 1 of the rollout batch is NaN",
        ),
        (of_values(0.0, 1.0, float("inf")), "the reward of response 2 is inf; allowed: finite numbers"),
    ],
    ids=["missing", "infinite"],
)
def test_trainer_refuses_rewards(rewards: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(entrobench.UserError, match=sentence):
        trainer_of("clip_b", tmp_path, reward=rewards).train()


def test_trainer_with_one_reward(tmp_path: Path) -> None:
    trainer = trainer_of("clip_b", tmp_path, reward=[of_values(1.0, None), of_values(None, 2.0, None, 3.0)])
    trainer.train()
    assert trainer.state.global_step == 1


def test_trainer_refuses_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "version", lambda package: "1.17.0")
    with pytest.warns(UserWarning, match=r"trl 1\.17\.0 is installed; .* tested with trl 1\.16\.0"):
        trainer_of("clip_b", tmp_path)
    monkeypatch.setattr(door, "version", lambda package: door.TESTED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer_of("clip_b", tmp_path)
    assert not [warning for warning in caught if "was tested with" in str(warning.message)]


def test_portable_method_warns_of_the_reference(tmp_path: Path) -> None:
    method = PortableMethod("grpo(kl_coef=0.2)")
    given = arguments(tmp_path)
    with pytest.warns(UserWarning, match=r"beta is set to 0.2 for method grpo\(kl_coef=0.2\)"):
        settled = door.settled_arguments(given, method)
    assert (settled.beta, given.beta) == (0.2, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        door.settled_arguments(arguments(tmp_path, beta=0.2), method)
        door.settled_arguments(arguments(tmp_path), PortableMethod("clip_b"))


def test_zero_3_is_refused(tmp_path: Path) -> None:
    class Plugin:
        zero_stage = 3

    args = arguments(tmp_path)
    args.deepspeed_plugin = Plugin()
    with pytest.raises(entrobench.UserError, match=r"ZeRO-3 releases the weights of the head .*; allowed: ZeRO-1"):
        door.settled_arguments(args, entrobench.Method("clip_b"))
