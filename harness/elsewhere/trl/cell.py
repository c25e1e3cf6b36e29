"""A cell that TRL trains: the same records, evaluations and checkpoints as of a cell that our own trainer trains.

The trainer is EntrobenchTrainer with the cell's settings, prompts, verifier and record of steps.
"""

from __future__ import annotations

import copy
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import GenerationConfig, PrinterCallback
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig

from harness.base import files
from harness.base.errors import CellFailure
from harness.cells import checksums
from harness.config import Config
from harness.elsewhere.checkpoints import LOGGED
from harness.elsewhere.portable import PortableMethod, PortableSignal
from harness.elsewhere.trl.trainer import EntrobenchTrainer, Scored
from harness.methods.batch import Rollout
from harness.tokens.metrics import Stopwatch
from harness.train.collect import Answered, Collected
from harness.train.record import Updates, record_of_step
from harness.train.trainer import Trainer
from harness.verify.background import judge_rollouts
from tasks import Problem, Verdict

# Entries of TRL's logs that a record has under the harness's names, or that have no meaning there.
OURS = ("loss", "grad_norm", "epoch")


class TrlTraining(Trainer):
    """The training of one cell by TRL, with the record, the engine and the evaluations of our own."""

    def run(self, on_durable: Callable[[int], None], leaving: Callable[[], bool] = lambda: False) -> None:
        self.on_durable, self.leaving = on_durable, leaving
        checkpoint = self.checkpoints.newest()
        if checkpoint is not None:
            self.done_steps = checksums.step_of(checkpoint)
            on_durable(self.done_steps)
        self.resume_log()
        with files.temporary_path(self.folder / "trl") as place:
            self.trainer = RecordedTrainer(self, place)
            lines = self.log.read()
            self.collector.generated = int(lines[-1]["metrics"].get("tokens/generated_total", 0)) if lines else 0
            if checkpoint is None:
                self.evaluated(0, dict(self.parts.pool.record), Stopwatch(self.parts.heartbeat))
            elif self.done_steps == self.last_step:  # only the trained model is missing
                self.trainer._load_from_checkpoint(str(checkpoint))
            if self.done_steps < self.last_step:
                self.trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            files.remove_path(place)
        self.checkpoints.keep(1)

    # After each step

    def end_step(self, record: dict[str, float]) -> None:
        """Log the step that TRL has done, and decide whether it saves a checkpoint and goes on."""
        step, control = self.done_steps + 1, self.trainer.control
        assert step == self.trainer.step - 1
        # Before the evaluation: this may make the step the last one, which is always evaluated.
        self.ending.add({"step": step, "metrics": record})
        self.evaluated(step, record, Stopwatch(self.parts.heartbeat))
        early = self.leaving()
        control.should_save = early or step % self.config.checkpoint.every == 0 or step == self.last_step
        control.should_training_stop = early or step == self.last_step

    def evaluated(self, step: int, record: dict[str, float], watch: Stopwatch) -> None:
        """Append a step to the log, with its evaluation if that is due."""
        if self.evaluation_due(step):
            with watch.phase("evaluate"):
                self.synchronise(step)
                record |= self.evaluate(step)
                self.engine.rest()
        self.log.append(step, time.time(), record | watch.seconds)
        self.done_steps = step


class RecordedTrainer(EntrobenchTrainer):
    """EntrobenchTrainer on the problems of a cell; a step is a rollout batch with all of its updates.

    The cell's training gets the record of each step, and decides by the flags of `control` what TRL does next. `place`
    holds the files that TRL writes until they are handed over.
    """

    def __init__(self, training: TrlTraining, place: Path) -> None:
        self.training, self.parts, self.collector = training, training.parts, training.collector
        self.config, parts = training.config, training.parts
        method = PortableMethod(parts.method.name, self.config.plugins, self.config.method_options)
        rows: list[dict[str, Any]] = []
        self.asked: dict[str, Problem] = {}  # by prompt, since TRL hands on nothing else of a row
        for step in range(1, self.config.train.steps + 1):
            for problem in self.collector.problems(step, range(self.config.train.prompts)):
                rows.append({"prompt": problem.prompt, "step": step})
                self.asked[problem.prompt] = problem
        longest = max(len(self.prompt_tokens(prompt)) for prompt in self.asked)
        arguments = grpo_arguments(self.config, parts.seed, longest)
        module = parts.policy.module
        module.set_attn_implementation("sdpa")  # TRL's rows are padded, and never packed
        module.register_forward_pre_hook(lambda *_: parts.heartbeat.forward())
        super().__init__(
            module,
            self.judge,
            GRPOConfig(output_dir=str(place), beta=method.composed.objective.kl_coef, **arguments),
            train_dataset=Dataset.from_list(rows),
            processing_class=copy.deepcopy(parts.tokenizer),  # TRL gives it a padding token
            method=method,
        )
        self.remove_callback(PrinterCallback)
        # A response ends as in evaluation and in other cells. TRL adds the tokens of the model's generation_config.
        self.eos_token_ids = [*parts.ends]
        self.generation_config.eos_token_id = self.generation_kwargs["eos_token_id"] = self.eos_token_ids

    def _send_telemetry(self) -> None:
        """Report nothing to anybody."""

    @property
    def step(self) -> int:
        """The training step at hand, from 1."""
        return self.state.global_step // updates_of_step(self.config) + 1

    def prompt_tokens(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt as every cell has them."""
        return self.collector.prompt(self.asked[prompt])

    # Sampling and judging

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        tokens = {prompt: self.prompt_tokens(prompt) for prompt in set(prompts)}
        return [tokens[prompt] for prompt in prompts], None, {}

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Begin a step, which has one rollout batch."""
        self.watch, self.began = Stopwatch(self.parts.heartbeat), time.perf_counter()
        self.updates = Updates()
        self.logged: dict[str, list[float]] = defaultdict(list)  # by TRL
        return super()._generate_and_score_completions(inputs)

    def _generate_single_turn(self, *inputs: Any, **named: Any) -> Any:
        # `generate` would take from it all that TRL leaves open, such as min_p and suppress_tokens.
        module = self.parts.policy.module
        own, module.generation_config = module.generation_config, GenerationConfig()
        try:
            with self.watch.phase("rollout"):
                return super()._generate_single_turn(*inputs, **named)
        finally:
            module.generation_config = own

    def judge(self, completion_ids: Sequence[list[int]], step: Sequence[int], **_: Any) -> list[float]:
        """Return the rewards of a step's responses, which are whole groups in the order of their places."""
        with self.watch.phase("verify"):
            problems, size = self.collector.problems(step[0], range(self.config.train.prompts)), self.config.train.group
            groups: dict[int, list[Rollout]] = {}
            # TRL does not give the engine's log p to reward functions. Zeros take its place: refusals.py refuses the
            # settings and methods that read it.
            for place, problem in enumerate(problems):
                prompt, group = self.collector.prompt(problem), []
                for response in completion_ids[place * size : (place + 1) * size]:
                    finished = bool(response) and response[-1] in self.eos_token_ids
                    group.append(Rollout(prompt, response, [0.0] * len(response), finished))
                groups[place] = group
            judged = judge_rollouts(self.parts.task, self.parts.verifier, self.parts.tokenizer, problems, groups)
            self.answered = []
            for place, problem in enumerate(problems):
                self.answered.append(Answered.of(place, problem, groups[place], judged[place]))
            self.collector.check_verdicts(step[0], self.answered)
        self._right = [verdict == Verdict.RIGHT for group in self.answered for verdict in group.verdicts]
        if step[0] == 1 or step[0] % self.config.checkpoint.every == 0:
            self.collector.keep_samples(step[0], self.answered)
        return [reward for group in self.answered for reward in group.rewards]

    # Updates

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the schedule of every cell: a linear rise over the first steps, not over updates."""
        updates, warmup = updates_of_step(self.config), max(self.config.train.warmup_steps, 1)
        self.lr_scheduler = LambdaLR(
            self.optimizer if optimizer is None else optimizer,
            lambda done_updates: min(1.0, (done_updates // updates + 1) / warmup),
        )
        return self.lr_scheduler

    def training_step(self, *inputs: Any, **named: Any) -> Any:
        self.parts.heartbeat.step = self.step
        loss = super().training_step(*inputs, **named)
        if not torch.isfinite(loss):
            raise CellFailure(f"the loss of the policy is {loss.item()}")
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save as TRL does, and make the folder one of the cell's checkpoints."""
        super()._save_checkpoint(model, trial)
        saved = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        (saved / TRAINING_ARGS_NAME).unlink()  # pickled, and read by nothing
        self.training.checkpoints.take(saved, self.training.done_steps)
        self.training.on_durable(self.training.done_steps)

    # The record

    def _log_signal(self, signal: PortableSignal, mode: str) -> None:
        super()._log_signal(signal, mode)
        self.signal = signal

    def _log_part(self, mode: str, signal: PortableSignal, now: Scored, part: Mapping[str, Any]) -> None:
        super()._log_part(mode, signal, now, part)
        self.updates.add_part(self.method.composed, *self.method.present(signal, now.logp, **part))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add TRL's log of an update; after the last one of a step, hand over the record of the step."""
        super().log(logs, start_time)
        if "loss" not in logs:  # of the whole run
            return
        self.updates.add_update(logs["loss"], logs["grad_norm"])
        if not math.isfinite(logs["grad_norm"]):
            raise CellFailure(f"the gradient of the policy is not finite (its norm is {logs['grad_norm']})")
        for key, value in logs.items():
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if is_number and key not in OURS and not key.startswith(LOGGED):
                self.logged[f"trl/{key}"].append(float(value))
        if self.state.global_step % updates_of_step(self.config) == 0:
            self.training.end_step(self.record())

    def record(self) -> dict[str, float]:
        """Return the record of the step whose updates are all done."""
        collected = Collected(self.answered, sum(group.tokens for group in self.answered), 0, {})
        self.collector.generated += collected.generated
        fixed, _, _ = self.signal.part(None)
        batch = collected.batch(self.config.rollout.max_new_tokens, str(fixed.weights_T.device))
        composed, generated = self.method.composed, self.collector.record_of(collected)
        record = record_of_step(composed, batch, fixed, collected, {}, self.updates, {}, generated)
        record |= composed.logged_state()
        record |= {key: float(np.mean(values)) for key, values in self.logged.items()}
        seconds = self.watch.seconds
        # All of the step that has no phase of its own.
        seconds["time/update_s"] = time.perf_counter() - self.began - sum(seconds.values())
        return record | seconds


# The settings of a cell in the terms of GRPOConfig


def updates_of_step(config: Config) -> int:
    """Return the optimizer steps of a training step, which TRL counts one by one."""
    return config.train.updates * config.train.epochs


def grpo_arguments(config: Config, seed: int, longest_prompt: int) -> dict[str, Any]:
    """Return the arguments of GRPOConfig for a settled configuration, except for the folder."""
    train, rollout, on_cpu = config.train, config.rollout, config.hardware.device == "cpu"
    rows = train.prompts * train.group // train.updates  # of an update
    # As many as fit, of equally many in each micro-batch.
    longest = longest_prompt + rollout.max_new_tokens
    fitting = [
        size for size in range(2, rows + 1) if rows % size == 0 and size * longest <= config.hardware.micro_tokens
    ]
    micro = max(fitting, default=1)
    accumulated = rows // micro
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
        "gradient_checkpointing": config.hardware.recompute > 0,
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
