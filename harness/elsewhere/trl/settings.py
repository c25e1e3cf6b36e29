"""The settings of a cell in the terms of TRL's GRPOConfig; imports no trl."""

from __future__ import annotations

from typing import Any

from harness.config import Config


def updates_of_step(config: Config) -> int:
    """Return the optimizer steps of a training step, which TRL counts one by one."""
    return config.train.updates * config.train.epochs


def rows_of_update(config: Config) -> int:
    """Return the responses that one rank adds to an update."""
    return config.train.prompts * config.train.group // (config.train.updates * config.hardware.world)


def rows_of_micro_batch(config: Config, longest_prompt: int) -> int:
    """Return the responses of a micro-batch: as many as fit, of equally many in each micro-batch of an update."""
    rows = rows_of_update(config)
    longest = longest_prompt + config.rollout.max_new_tokens
    for size in range(rows, 1, -1):
        if rows % size == 0 and size * longest <= config.hardware.micro_tokens:
            return size
    return 1


def grpo_arguments(config: Config, seed: int, longest_prompt: int) -> dict[str, Any]:
    """Return the arguments of GRPOConfig for a settled configuration, except for the folder."""
    train, rollout, on_cpu = config.train, config.rollout, config.hardware.device == "cpu"
    micro = rows_of_micro_batch(config, longest_prompt)
    accumulated = rows_of_update(config) // micro
    return {
        "seed": seed,
        "use_cpu": on_cpu,
        "bf16": train.dtype == "bfloat16",
        "fp16": False,
        # Sampling, by temperature alone.
        "num_generations": train.group,
        "temperature": rollout.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "max_completion_length": rollout.max_new_tokens,
        # Updates.
        "max_steps": train.steps * updates_of_step(config),
        "num_iterations": train.epochs,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": train.updates * accumulated,
        "learning_rate": train.lr,
        "adam_beta1": train.betas[0],
        "adam_beta2": train.betas[1],
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.grad_clip,
        "gradient_checkpointing": config.hardware.recompute,
        "ddp_find_unused_parameters": False,  # every weight has a gradient; looking for others takes time, and warns
        # The cell's own: the order of the problems, the times of checkpoints, the log, and failures of the numbers.
        "shuffle_dataset": False,
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": [],
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": not on_cpu,
    }
