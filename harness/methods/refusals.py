"""The trainers of other projects that can run our methods, and the methods that each of them refuses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib import metadata

from harness.base.errors import UserError
from harness.config import ADAMW, ADAMW8BIT, MINI_BATCH, TRL, Config
from harness.methods.composition import Method


def foreign_refusal(method: Method) -> str | None:
    """Return why no trainer with an optimizer and steps of its own can run a method, or None where one can."""
    changing = [f"{name}.{option}" for name, schedules in method.schedules.items() for option in schedules]
    if changing:
        return f"changes {changing[0]} over the steps of a run, as only entrobench's own trainer does; write one number"
    if method.base_share:
        return "trains on right responses of the model before training, as only entrobench's own trainer does"
    if method.objective.lr is None:
        return None
    return (
        f"sets the learning rate {method.objective.lr:g}, which the trainer's own optimizer would ignore; leave lr "
        "out, and set the rate there (TRL: GRPOConfig.learning_rate, verl: actor_rollout_ref.actor.optim.lr)"
    )


def trl_refusal(method: Method) -> str | None:
    """Return why TRL's GRPOTrainer cannot run a method, or None where it can."""
    if refusal := foreign_refusal(method):
        return refusal
    needs = method.needs
    reasons = {
        "needs a critic, which GRPOTrainer lacks": "values" in needs,
        "needs two statistics of the likely tokens, and the head of GRPOTrainer can give one": (
            {"min_p", "likeliest_entropy"} <= needs
        ),
        "compares the answers of a group in their normal form, which GRPOTrainer does not know": method.reads_answers,
        "reads how often the model before training was right, which GRPOTrainer does not measure": method.reads_base,
        "reads the policy that sampled, which GRPOTrainer keeps only with some engines": method.reads_sampler,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def verl_refusal(method: Method) -> str | None:
    """Return why verl's PPO trainer cannot run a method, or None where it can."""
    if refusal := foreign_refusal(method):
        return refusal
    needs = method.needs
    reasons = {
        "needs the sums over squared probabilities, which verl does not compute": "sum_p2" in needs,
        "needs log p among the likely tokens, which verl does not compute": "min_p" in needs,
        "needs the entropy among the likeliest tokens, which verl does not compute": "likeliest_entropy" in needs,
        "compares the answers of a group in their normal form, which verl does not know": method.reads_answers,
        "reads how often the model before training was right, which verl does not measure": method.reads_base,
        "looks at each whole mini-batch before its update, for which verl has no step": method.marks_steps,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


REFUSALS: dict[str, Callable[[Method], str | None]] = {"trl": trl_refusal, "verl": verl_refusal}


# The trainers of cells: TRL (train.backend), or our own

PEFT = "peft"  # the distribution that makes the adapters of train.lora
TORCHAO = "torchao"  # that has AdamW with moments of 8 bits
TRL_DISTRIBUTIONS = ("trl", "accelerate")  # that train
LEAST_GROUP = 2  # of GRPOTrainer, which refuses a smaller num_generations


def check_backend(config: Config, method: Method) -> None:
    """Refuse settings and methods that the trainer of the cells cannot honor."""
    if config.train.backend != TRL:
        return
    if refusal := trl_refusal(method):
        raise UserError(
            f"train.backend is {TRL!r}, but method {method.name!r} {refusal}; allowed: `entrobench list methods --for "
            f"{TRL}`, with the learning rate in train.lr"
        )
    hardware, train = config.hardware, config.train
    allowed_values = {  # by key: the value, whether TRL can honor it, and the values that it can
        "hardware.compile": (hardware.compile, not hardware.compile, "false"),
        "hardware.ranks": (hardware.ranks, hardware.ranks == 1, "1"),
        "hardware.nodes": (hardware.nodes, hardware.nodes == 1, "1"),
        "hardware.offload": (hardware.offload, not hardware.offload, "false"),
        "rollout.engine": (config.rollout.engine, config.rollout.engine != "vllm", "auto or embedded, which evaluates"),
        "rollout.lag": (config.rollout.lag, not config.rollout.lag, "0"),
        "correction.kind": (config.correction.kind, config.correction.kind == "off", "off"),
        "train.resample": ("set", train.resample is None, "null"),
        "train.lora": ("set", train.lora is None, "null"),
        "train.optimizer": (train.optimizer, train.optimizer == ADAMW, ADAMW),
        "train.loss_scale": (train.loss_scale, train.loss_scale == MINI_BATCH, MINI_BATCH),
        "train.group": (train.group, train.group >= LEAST_GROUP, f"{LEAST_GROUP} and more"),
    }
    for key, (value, honored, allowed) in allowed_values.items():
        if not honored:
            shown_value = str(value).lower() if isinstance(value, bool) else value
            raise UserError(f"{key} is {shown_value}, which train.backend={TRL} cannot do; allowed: {allowed}")


def trainer_obstacle(config: Config) -> str | None:
    """Return why the trainer of the cells cannot run on this machine, in one sentence; None if it can."""
    needed: dict[str, tuple[str, str]] = {}  # by package: the setting that needs it, and its extra
    if config.train.backend == TRL:
        needed |= dict.fromkeys(TRL_DISTRIBUTIONS, (f"train.backend is {TRL!r}", "trl"))
    if config.train.lora is not None:
        needed[PEFT] = ("train.lora is set", "lora")
    if config.train.optimizer == ADAMW8BIT:
        needed[TORCHAO] = (f"train.optimizer is {ADAMW8BIT!r}", ADAMW8BIT)
    for package, (setting, extra) in needed.items():
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            return f"{setting}, but {package} is not installed here; pip install -e '.[{extra}]'"
    if config.hardware.compile and shutil.which(os.environ.get("CXX", "g++")) is None:
        return "hardware.compile is true, but there is no C++ compiler here; Debian, Ubuntu: apt install g++"
    return None
