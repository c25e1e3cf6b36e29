"""All that a cell trains with, and how it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoTokenizer

import baselines
import tasks
from harness.base.errors import UserError
from harness.cells import heartbeat
from harness.cells.spec import CellSpec
from harness.composition import Method
from harness.config import Config
from harness.dist import ranks
from harness.dist.together import led
from harness.rollout import choice, engines, models, templates
from harness.rollout.proof import check_engine_weights
from harness.rollout.protocol import Engine
from harness.rollout.rendering import Chat, count_unread, with_instruction
from harness.train.filter import RESPONSES, Asker, Pool, pool
from harness.train.policy import Critic, Policy, check_vocabulary
from harness.train.weights import opened
from tasks import Task, Verifier


@dataclass(frozen=True)
class Parts:
    """All that a cell trains with."""

    cell: str  # its key
    config: Config
    seed: int
    method: Method
    task: Task
    evaluation_tasks: dict[str, Task]  # by the names of their evaluations
    pool: Pool  # the problems that are trained on
    policy: Policy
    critic: Critic | None
    reference: Policy | None  # the model before training
    engine: Engine
    tokenizer: Any
    verifier: Verifier
    chat: Chat


def device_of(config: Config) -> tuple[str, torch.dtype]:
    device = config.hardware.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("hardware.device is 'cuda', but torch sees no CUDA device here; allowed: auto, cpu")
    if config.train.dtype == "auto":
        return device, torch.bfloat16 if device == "cuda" else torch.float32
    return device, getattr(torch, config.train.dtype)


def build(spec: CellSpec, verifier: Verifier, say: Callable[[str], None] = print) -> Parts:
    """Returns all that a cell trains with."""
    config = spec.config
    device, dtype = device_of(config)
    torch.set_num_threads(config.hardware.threads)
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(config.hardware.share)
    method = Method.of(spec.method, baselines.table(config.plugins), config.method_options)
    model = models.resolve(spec.model)
    base = model.folder()
    templates.warm_up(base)
    common = (config.train, config.rollout.temperature, device, dtype, config.hardware)
    policy = Policy(base, *common)
    critic = None
    if "values" in method.needs:
        critic_lr = vars(method.objective)["critic_lr"]  # every objective that needs values has one
        critic = Critic(base, config.train, critic_lr, device, dtype, config.hardware)
    tokenizer = opened(AutoTokenizer, base)
    check_vocabulary(tokenizer, policy.module, base)
    chosen = choice.resolve_engine(config.rollout.engine, device, model.shape())
    engine = engines.build_engine(chosen, base, tokenizer.eos_token_id, device, dtype, config.hardware)
    torch.manual_seed(spec.seed)  # after the engine, since vLLM seeds what all of the process draw from
    task = with_instruction(tasks.build_task(spec.task, config.plugins), model.chat)
    if config.train.filter is not None:
        engine.load(policy.module)  # which has not been trained yet
        check_engine_weights(engine, policy.module, dtype, spec.seed)
    most, given = config.verify.max_failures, config.train.filter
    weights = {**model.identity(), "digest": model.digest(base)}
    asker = Asker(weights, task, engine, tokenizer, verifier, config.rollout, most, model.chat)
    found = None
    with heartbeat.here.at("filter"), led(asker.verdicts) as ask:
        if ask is not None:
            at_once = ranks.count() * max(RESPONSES // given.n, 1) if given else 0
            found = pool(asker, ask, given, models.default_cache(), at_once, say)
    problems = ranks.of_first(found)
    assert problems is not None
    return Parts(
        cell=spec.cell,
        config=config,
        seed=spec.seed,
        method=method,
        task=task,
        evaluation_tasks={
            # The instruction is the model's: it is not part of the name.
            tasks.evaluation_name(each): with_instruction(each, model.chat)
            for each in (tasks.build_task(named, config.plugins) for named in config.eval.tasks or [spec.task])
        },
        pool=problems,
        policy=policy,
        critic=critic,
        reference=Policy(base, *common) if "ref_logp" in method.needs else None,
        engine=engine,
        tokenizer=tokenizer,
        verifier=verifier,
        chat=model.chat,
    )


LOOKED_AT = 512  # training prompts; all of a large set would take longer than a cell has to start


def unread(parts: Parts, spec: CellSpec) -> str | None:
    """Returns a warning, which the log holds too, where the tokenizer leaves letters out of prompts to train on.

    Some letters may be missed by nobody. But where no letter is left of any prompt, all problems look the same, and
    rewards would teach nothing: that is refused.
    """
    problems = parts.pool.problems
    prompts = [problem.prompt for problem in problems[:: -(-len(problems) // LOOKED_AT)]]
    some, everything = count_unread(parts.tokenizer, prompts, parts.chat)
    if everything == len(prompts):
        raise UserError(
            f"the tokenizer of {spec.model} has no token for any letter or digit of {everything} prompts of "
            f"{spec.task}, which would all look the same; train a model that can read them"
        )
    if not some:
        return None
    warning = f"warning: the tokenizer leaves letters out of {some} of {len(prompts)} training prompts"
    if ranks.number() == 0:
        print(warning, flush=True)
    return warning
