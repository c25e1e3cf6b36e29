"""The parts of a cell: everything that it trains with, built from its specification."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

import baselines
import tasks
from harness import ranks
from harness.base.devices import Device, bfloat16_obstacle
from harness.base.errors import UserError
from harness.cells import provenance, repair
from harness.cells.lease import Heartbeat
from harness.cells.provenance import Made
from harness.cells.spec import CellSpec
from harness.cells.state import State
from harness.config import ADAMW8BIT, OWN, TRL, Config
from harness.methods.composition import Method, method_classes
from harness.methods.refusals import PEFT, TORCHAO, TRL_DISTRIBUTIONS
from harness.rollout import choice, engines, models
from harness.rollout.ends import end_tokens
from harness.rollout.proof import check_engine_weights
from harness.rollout.protocol import Engine
from harness.rollout.rendering import Chat, with_instruction
from harness.train import gpu_memory
from harness.train.base_responses import BaseResponses, right_responses
from harness.train.evaluate import Evaluator
from harness.train.filter import Asker, TrainingPool, training_pool
from harness.train.policy import Critic, Policy, check_vocabulary
from harness.train.weights import opened
from tasks import Task, Verifier


@dataclass(frozen=True)
class Parts:
    cell: str  # its id
    config: Config
    seed: int
    method: Method
    task: Task
    evaluation_tasks: dict[str, Task]  # by the names of their evaluations
    pool: TrainingPool  # the problems that are trained on
    policy: Policy
    critic: Critic | None
    reference: Policy | None  # the model before training: the policy itself where only its adapters are trained
    base_responses: BaseResponses | None  # for a method that trains on them too
    engine: Engine
    tokenizer: Any
    ends: tuple[int, ...]  # the tokens that end a response
    verifier: Verifier
    chat: Chat
    heartbeat: Heartbeat = field(default_factory=Heartbeat)


def training_device(config: Config) -> tuple[str, torch.dtype]:
    """Return the device and the compute type of a settled configuration."""
    device, dtype = config.hardware.device, config.train.dtype
    assert "auto" not in (device, dtype)
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("hardware.device is 'cuda', but torch sees no CUDA device here; allowed: auto, cpu")
    if device == "cuda" and dtype == "bfloat16":
        card = Device(torch.cuda.get_device_name(), None, torch.cuda.get_device_capability())
        if reason := bfloat16_obstacle([card]):
            raise UserError(reason)
    return device, getattr(torch, dtype)


def begin_cell(
    folder: Path, config: Config, sources: dict[str, str], base_model: str, why: str | None, **more: Any
) -> None:
    """Record that a cell runs, and what makes its numbers, unless its attempt has begun before.

    `why`: the reason to delete an earlier attempt; one from another base model is deleted anyway. `more`: further parts
    of the record.
    """
    earlier = Made.read(folder)
    if earlier is not None and earlier.base_model not in (None, base_model):
        why = "it began from another base model"
    if why is not None:
        repair.start_over(folder, why)
        earlier = None
    if earlier is None:
        record_attempt(folder, config, sources, base_model, **more)
    State("running", seconds=State.known(folder).seconds).write(folder)


def record_attempt(folder: Path, config: Config, sources: dict[str, str], base_model: str, **more: Any) -> None:
    """Record what makes the numbers in a folder: the device and the packages of a settled configuration, and `more`."""
    gpu = torch.cuda.get_device_name() if config.hardware.device == "cuda" else None
    packages = [*choice.DISTRIBUTIONS] if config.rollout.engine == "vllm" else []
    if config.train.backend == TRL:
        packages += TRL_DISTRIBUTIONS
    if config.train.lora is not None:
        packages.append(PEFT)
    if config.train.optimizer == ADAMW8BIT:
        packages.append(TORCHAO)
    provenance.begin_attempt(folder, sources, config.hardware.device, gpu, packages, base_model=base_model, **more)


def source_classes(spec: CellSpec) -> dict[str, type]:
    """Return the classes of a cell's method and tasks, whose source is part of its identity, by their names."""
    config = spec.config
    methods = baselines.table(config.plugins)
    method = Method.of(spec.key.method, methods, config.method_options)
    built = [tasks.build_task(name, config.plugins) for name in (spec.key.task, *config.eval.tasks)]
    components = [*method.components, *built]
    return provenance.component_classes(components, method_classes(methods), tasks.task_table(config.plugins))


def build_parts(
    spec: CellSpec, verifier: Verifier, say: Callable[[str], None] = print, heartbeat: Heartbeat | None = None
) -> Parts:
    """Return everything that a cell trains with; `heartbeat` follows its progress."""
    heartbeat = heartbeat or Heartbeat()
    config = spec.config
    device, dtype = training_device(config)
    torch.set_num_threads(config.hardware.threads)
    if device == "cuda":  # other cells may share this GPU
        gpu_memory.limit(config.hardware.share)
    method = Method.of(spec.key.method, baselines.table(config.plugins), config.method_options)
    model = models.resolve(spec.key.model)
    base = model.folder()
    train = dataclasses.replace(config.train, lr=method.learning_rate(config.train.lr))
    common = (config.rollout.temperature, device, dtype, config.hardware, heartbeat.forward)
    policy = Policy(base, train, *common, spec.key.seed)
    if policy.dropout and ranks.own_rank() == 0:
        former = ", ".join(f"{name} {value:g}" for name, value in policy.dropout.items())
        say(f"dropout of the model is set to 0, since every pass must be of one policy: {former}")
    critic = None
    if "values" in method.needs:
        critic_lr = vars(method.objective)["critic_lr"]  # an option of every objective that needs values
        critic = Critic(base, train, critic_lr, *common[1:], spec.key.seed)
    tokenizer = opened(AutoTokenizer, base)
    check_vocabulary(tokenizer, policy.module, base)
    ends = end_tokens(tokenizer, base, model.chat)
    engine = engines.build_engine(
        config.rollout.engine, base, ends, device, dtype, config.hardware, heartbeat.forward, train.lora
    )
    if device == "cuda" and not config.rollout.lag:
        gpu_memory.limit(config.hardware.share)  # again, since the engine counts from now on, also while it sleeps
    torch.manual_seed(spec.key.seed)  # after the engine, since vLLM sets the process-wide seed
    task = with_instruction(tasks.build_task(spec.key.task, config.plugins), model.chat)
    if config.train.filter is not None:
        engine.load(policy.module)  # not trained yet
        check_engine_weights(engine, policy.module, dtype, spec.key.seed)
    # By the weights themselves: the filter's counts are kept for later cells, and a model's folder may change.
    weights = {**model.identity(), "digest": model.digest(base)}
    evaluator = Evaluator.of_config(config, engine, tokenizer, verifier, model.chat, policy.module)
    asker = Asker(weights, task, evaluator, config, heartbeat.forward)
    selected = None
    with heartbeat.at("filter"), ranks.on_all_ranks(asker.verdicts) as ask:
        if ask is not None:
            selected = training_pool(asker, ask, say)
    problems = ranks.of_first(selected)
    assert problems is not None
    base_responses = None
    if method.base_share:
        with heartbeat.at("base responses"):
            right = right_responses(asker, problems.easy, spec.key.seed, say)
            engine.rest()  # gives its memory to the policy, until the next load
            base_responses = BaseResponses.of(right, policy, spec.key.seed)
    reference = None
    if "ref_logp" in method.needs and config.train.backend == OWN:  # TRL loads it again
        reference = Policy(base, train, *common) if train.lora is None else policy
    return Parts(
        cell=spec.id,
        config=config,
        seed=spec.key.seed,
        method=method,
        task=task,
        evaluation_tasks=evaluation_tasks_of(config, spec.key.task, model.chat),
        pool=problems,
        policy=policy,
        critic=critic,
        reference=reference,
        base_responses=base_responses,
        engine=engine,
        tokenizer=tokenizer,
        ends=ends,
        verifier=verifier,
        chat=model.chat,
        heartbeat=heartbeat,
    )


def evaluation_tasks_of(config: Config, trained_on: str, chat: Chat) -> dict[str, Task]:
    """Return the tasks that a cell is evaluated on, by the names of their evaluations."""
    evaluation_tasks = {}
    for name in config.eval.tasks or [trained_on]:
        built = tasks.build_task(name, config.plugins)
        # Named before the model's instruction is added: scores of several models share the name of their evaluation.
        evaluation_tasks[tasks.evaluation_name(built)] = with_instruction(built, chat)
    return evaluation_tasks
