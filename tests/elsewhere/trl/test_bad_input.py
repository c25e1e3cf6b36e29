"""Tests what EntrobenchTrainer refuses: methods that TRL cannot run, groups, rewards, and another version of TRL.

Contradictions between a method and GRPOConfig, and checkpoints of another method, are in test_trl.py.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import baselines
import entrobench
from harness.methods.composition import Method
from harness.methods.refusals import trl_refusal

with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "vllm", None)  # trl would take the folder tests/vllm for it
    pytest.importorskip("trl.trainer.grpo_trainer", reason="trl is not installed; the extra trl has it")
    door: Any = importlib.import_module("harness.elsewhere.trl.trainer")

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
WORDS = 7
REFUSED = [name for name in baselines.METHODS if trl_refusal(Method.of(name, baselines.table())) is not None]


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep TRL from reporting its use."""
    monkeypatch.setattr(door.GRPOTrainer, "_send_telemetry", lambda self: None)


def tiny_model() -> Qwen2ForCausalLM:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=WORDS, num_key_value_heads=1, **sizes))


def sampled(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
    """Return a response of two tokens to each prompt."""
    return {
        "prompt_ids": [[3, 2] for _ in prompts],
        "completion_ids": [[2 + row % 4, 3] for row in range(len(prompts))],
        "logprobs": [[-1.0, -1.0] for _ in prompts],
    }


def made(spec: str, folder: Path, *rewards: Callable[..., Any], **options: Any) -> Any:
    """Return a trainer of a tiny model, whose responses have some rewards."""
    words = Tokenizer(WordLevel({str(i): i for i in range(WORDS)}, unk_token="0"))
    common: dict[str, Any] = {
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "max_steps": 1,
        "max_completion_length": 4,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "disable_tqdm": True,
    }
    more = {name: options.pop(name) for name in ("plugins", "eval_dataset") if name in options}
    return door.EntrobenchTrainer(
        method=spec,
        model=tiny_model(),
        reward_funcs=list(rewards) or of_values(1.0, 0.0),
        args=door.GRPOConfig(output_dir=str(folder), **{**common, **options}),
        train_dataset=Dataset.from_list([{"prompt": str(row)} for row in range(8)]),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, eos_token="0", pad_token="1"),
        rollout_func=sampled,
        **more,
    )


def of_values(*values: float | None) -> Callable[..., list[float | None]]:
    """Return a reward function that gives some values in turn."""

    def reward(completion_ids: Sequence[Any], **_: Any) -> list[float | None]:
        return [values[row % len(values)] for row in range(len(completion_ids))]

    reward.__name__ = f"of_{len(values)}"
    return reward


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_that_trl_cannot_run_is_refused_with_the_reason_of_the_list(name: str, tmp_path: Path) -> None:
    reason = trl_refusal(Method.of(name, baselines.table()))
    sentence = f"^method {name} {reason}; allowed: `entrobench list methods --for trl`$"
    with pytest.raises(entrobench.UserError, match=sentence):
        made(name, tmp_path)


def test_the_methods_that_trl_cannot_run() -> None:
    """A critic, the answers of a group, and the policy that sampled."""
    assert REFUSED == ["ppo", "outcome_exploration", "m2po"]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("clip_c", "unknown method 'clip_c'.*clip_b"),
        ("clip_b(shares=0.02)", "shares.*share"),
        ("clip_b(share=2)", r"clip_b\.share is 2"),
        ("grpo+dapo", "dapo"),
    ],
)
def test_a_spec_that_does_not_parse_names_what_is_near(spec: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(entrobench.UserError, match=sentence):
        made(spec, tmp_path)


def test_a_plugin_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(entrobench.UserError, match="no_such_plugin"):
        made("clip_b", tmp_path, plugins=["no_such_plugin"])


def test_a_group_of_one_is_refused_by_trl(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 2 generations per prompt"):
        made("clip_b", tmp_path, num_generations=1)


@pytest.mark.parametrize(
    ("spec", "least", "options"),
    [("passk", 5, {}), ("clip_b", 2, {"num_generations_eval": 1, "per_device_eval_batch_size": 8})],
)
def test_a_group_that_is_too_small_for_the_method_is_refused(
    spec: str, least: int, options: dict[str, Any], tmp_path: Path
) -> None:
    rows = Dataset.from_list([{"prompt": str(row)} for row in range(8)])
    name, size = ("num_generations_eval", 1) if options else ("num_generations", 4)
    sentence = f"{name} is {size}; method {spec} learns from groups of {least} and more"
    with pytest.raises(entrobench.UserError, match=sentence):
        made(spec, tmp_path, eval_dataset=rows, eval_strategy="no", **options)


def test_a_reward_that_all_functions_leave_open_is_refused(tmp_path: Path) -> None:
    trainer = made("clip_b", tmp_path, of_values(1.0, None), of_values(0.0, None, 2.0, None))
    with pytest.raises(entrobench.UserError, match="the reward of response 1 of the rollout batch is NaN"):
        trainer.train()


def test_a_reward_of_one_function_is_enough(tmp_path: Path) -> None:
    trainer = made("clip_b", tmp_path, of_values(1.0, None), of_values(None, 2.0, None, 3.0))
    trainer.train()
    assert trainer.state.global_step == 1


def test_an_infinite_reward_is_refused(tmp_path: Path) -> None:
    trainer = made("clip_b", tmp_path, of_values(0.0, 1.0, float("inf")))
    with pytest.raises(entrobench.UserError, match="the reward of response 2 is inf; allowed: finite numbers"):
        trainer.train()


def test_a_trainer_looks_at_the_version_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "version", lambda package: "1.17.0")
    with pytest.warns(UserWarning, match=r"trl 1\.17\.0 is installed; .* tested with trl 1\.16\.0"):
        made("clip_b", tmp_path)
    monkeypatch.setattr(door, "version", lambda package: door.TESTED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made("clip_b", tmp_path)
    assert not [warning for warning in caught if "was tested with" in str(warning.message)]


def test_zero_3_is_refused(tmp_path: Path) -> None:
    class Plugin:
        zero_stage = 3

    args = door.GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    args.deepspeed_plugin = Plugin()
    with pytest.raises(entrobench.UserError, match=r"ZeRO-3 releases the weights of the head .*; allowed: ZeRO-1"):
        door.settled_arguments(args, entrobench.Method("clip_b"))
