"""Trainers of TRL with a tiny model, whose responses are scripted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from ragged import VOCABULARY, Case
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "vllm", None)  # trl would take the folder tests/vllm for it
    pytest.importorskip("trl.trainer.grpo_trainer", reason="trl is not installed; the extra trl has it")
    door: Any = importlib.import_module("harness.elsewhere.trl.trainer")

door.GRPOTrainer._send_telemetry = lambda self: None  # no test reports that TRL is used
BUDGET = 9


def tokenizer(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    words = {str(i): i for i in range(vocabulary)}
    core = Tokenizer(WordLevel(words, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="0", pad_token="1")


def tiny(vocabulary: int = VOCABULARY) -> PreTrainedModel:
    torch.manual_seed(0)
    counts = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, hidden_size=8, intermediate_size=8, **counts))


def arguments(folder: Path, config: Any = None, **options: Any) -> Any:
    given = {"use_cpu": True, "bf16": False, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    given |= {"logging_steps": 1, "max_steps": 1, "max_completion_length": BUDGET}
    given |= {"num_generations": 4, "per_device_train_batch_size": 8}
    return (config or door.GRPOConfig)(output_dir=str(folder), **given | options)


def scripted(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
    """Sample what the prompt and the place of the response in its group decide, on any number of processes."""
    first, size = trainer.accelerator.process_index * len(prompts), trainer.num_generations
    completions = []
    for row, prompt in enumerate(prompts):
        generator = torch.Generator().manual_seed(100 * int(prompt) + (first + row) % size)
        length = int(torch.randint(1, BUDGET + 1, (1,), generator=generator))
        completions.append(torch.randint(2, VOCABULARY, (length,), generator=generator).tolist())
    return {
        "prompt_ids": [[int(prompt) % VOCABULARY, 3, 2] for prompt in prompts],
        "completion_ids": completions,
        "logprobs": [[0.0] * len(row) for row in completions],
    }


def sampling(case: Case) -> Callable[..., dict[str, Any]]:
    """Return a function that samples the responses of a case, whatever the prompts are."""
    responses = [rollout for group in case.groups for rollout in group]
    sampled = {
        "prompt_ids": [response.prompt for response in responses],
        "completion_ids": [response.response for response in responses],
        "logprobs": [response.logp for response in responses],
    }
    return lambda prompts, trainer: dict(sampled)


def spread(x_T: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the values of tokens as a padded row for each response."""
    return x_T.new_zeros(mask_BT.shape).masked_scatter(mask_BT.bool(), x_T)


def odd(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [float(sum(row) % 2) for row in completion_ids]


def trainer_of(spec: str, folder: Path, model: Any = None, reward: Any = odd, kind: Any = None, **options: Any) -> Any:
    """Return a trainer of a tiny model by a method, or by TRL's own `kind`; options are of GRPOConfig or a trainer."""
    more: dict[str, Any] = {
        "train_dataset": Dataset.from_list([{"prompt": str(i)} for i in range(2, 34)]),
        "processing_class": tokenizer(),
        "rollout_func": scripted,
    }
    for name in (*more, "peft_config", "eval_dataset", "plugins"):
        if name in options:
            more[name] = options.pop(name)
    if kind is None:
        kind, more["method"] = door.EntrobenchTrainer, spec
    return kind(model=model or tiny(), reward_funcs=reward, args=arguments(folder, **options), **more)


def losses(trainer: Any) -> list[float]:
    """Return the losses of the optimizer steps that a trainer has logged, in full precision."""
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]
