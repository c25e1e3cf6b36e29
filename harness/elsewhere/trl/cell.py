"""A cell that TRL trains: the same records, evaluations and checkpoints as of a cell that our own trainer trains.

The trainer is EntrobenchTrainer with the cell's settings, prompts, verifier and record of steps.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig

from harness import ranks
from harness.base import files
from harness.base.errors import CellFailure
from harness.cells import checksums
from harness.cells.spec import CellSpec
from harness.config import Config
from harness.elsewhere.checkpoints import LOGGED
from harness.elsewhere.portable import PortableMethod, PortableSignal
from harness.elsewhere.trl.trainer import EntrobenchTrainer, Scored, gathered
from harness.methods.batch import Rollout
from harness.tokens import dynamics
from harness.tokens.metrics import Stopwatch
from harness.train.checkpoint import Checkpoints
from harness.train.collect import SHOWN_PROBLEMS, Answered, Collected, answered_group, of_all
from harness.train.parts import Parts
from harness.train.record import Updates, record_of_step
from harness.train.trainer import Trainer
from harness.verify.background import judge_rollouts
from tasks import Problem

# Entries of TRL's logs that a record has under the harness's names, or that have no meaning there.
OURS = ("loss", "grad_norm", "epoch")


def training_of(spec: CellSpec, parts: Parts, folder: Path, checkpoints: Checkpoints) -> TrlTraining:
    """Return the training of a cell by TRL."""
    # Without it, accelerate sets the threads of torch to all cores where a cell has several ranks.
    os.environ.setdefault("OMP_NUM_THREADS", str(spec.config.hardware.threads))
    method = PortableMethod(spec.key.method, spec.config.plugins, spec.config.method_options)
    return TrlTraining(parts, method, folder, checkpoints)


class TrlTraining(Trainer):
    """The training of one cell by TRL, with the record, the engine and the evaluations of our own."""

    def __init__(self, parts: Parts, method: PortableMethod, folder: Path, checkpoints: Checkpoints) -> None:
        super().__init__(parts, folder, checkpoints)
        self.portable = method

    def run(self, on_durable: Callable[[int], None], leaving: Callable[[], bool] = lambda: False) -> None:
        self.on_durable, self.leaving = on_durable, leaving
        checkpoint = self.checkpoints.newest()
        if checkpoint is not None:
            self.done_steps = checksums.step_of(checkpoint)
            on_durable(self.done_steps)
        self.resume_log()
        with temporary_folder(self.folder / "trl") as place:
            self.trainer = RecordedTrainer(self, place)
            lines = ranks.of_first(self.log.read())
            self.trainer.generated = int(lines[-1]["metrics"].get("tokens/generated_total", 0)) if lines else 0
            if checkpoint is None:
                self.evaluated(0, dict(self.parts.pool.record), Stopwatch(self.parts.heartbeat))
            elif self.done_steps == self.last_step:  # only the trained model is missing
                self.trainer._load_from_checkpoint(str(checkpoint))
            if self.done_steps < self.last_step:
                self.trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        self.checkpoints.keep(1)

    # After each step

    def end_step(self, record: dict[str, float]) -> None:
        """Log the step that TRL has done, and decide whether it saves a checkpoint and goes on."""
        step, control = self.done_steps + 1, self.trainer.control
        assert step == self.trainer.step - 1
        # Before the evaluation: this may make the step the last one, which is always evaluated.
        self.ending.add({"step": step, "metrics": record})
        self.evaluated(step, record, Stopwatch(self.parts.heartbeat))
        early = ranks.of_first(self.leaving())  # one rank's answer for all, or some would wait for the others forever
        control.should_save = early or step % self.config.checkpoint.every == 0 or step == self.last_step
        control.should_training_stop = early or step == self.last_step

    def end_checkpoint(self, saved: Path) -> None:
        """Make the checkpoint that TRL has saved one of the cell's."""
        self.checkpoints.take(saved, self.done_steps)
        self.on_durable(self.done_steps)

    def evaluated(self, step: int, record: dict[str, float], watch: Stopwatch) -> None:
        """Append a step to the log, with its evaluation if that is due."""
        if self.evaluation_due(step):
            with watch.phase("evaluate"):
                self.synchronise(step)
                record |= self.evaluate(step)
                self.engine.rest()
        if ranks.own_rank() == 0:
            self.log.append(step, time.time(), record | watch.seconds)
        self.done_steps = step


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder of all ranks, which rank 0 removes at the end."""
    if ranks.own_rank() == 0:
        with files.temporary_path(path) as place:
            yield ranks.of_first(place)
            ranks.meet()  # TRL on another rank may still read it
            files.remove_path(place)
    else:
        place_of_first = ranks.of_first(None)
        assert place_of_first is not None
        yield place_of_first
        ranks.meet()


class RecordedTrainer(EntrobenchTrainer):
    """EntrobenchTrainer on the problems of a cell; a step is a rollout batch with all of its updates.

    The cell's training gets the record of each step, and decides by the flags of `control` what TRL does next. `place`
    holds the files that TRL writes until they are handed over.
    """

    def __init__(self, training: TrlTraining, place: Path) -> None:
        self.training, self.parts, self.collector = training, training.parts, training.collector
        parts, method = training.parts, training.portable
        self.config = parts.config
        self.generated = 0  # tokens, in all steps so far
        # Of each step, on this rank. TRL gives each rank consecutive prompts, and a rank has an equal part of them.
        share = self.config.train.prompts // ranks.count()
        self.places = range(ranks.own_rank() * share, (ranks.own_rank() + 1) * share)
        self.answered: list[Answered] = []  # of the step at hand, by this rank
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
            callbacks=[StepCallback(self)],
            method=method,
        )
        self.remove_callback(PrinterCallback)
        # A response ends as in evaluation and in other cells. TRL adds the tokens of the model's generation_config.
        self.eos_token_ids = [*parts.ends]
        self.generation_config.eos_token_id = self.generation_kwargs["eos_token_id"] = self.eos_token_ids
        if self.config.dynamics.every:
            self._more_needs = frozenset({"sum_p2"})

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

    def _generate_single_turn(self, *inputs: Any, **named: Any) -> Any:
        with self.watch.phase("rollout"):
            return super()._generate_single_turn(*inputs, **named)

    def judge(self, completion_ids: Sequence[list[int]], step: Sequence[int], **_: Any) -> list[float]:
        """Return the rewards of this rank's responses in a step, which are whole groups in the order of its places."""
        with self.watch.phase("verify"):
            problems, size = self.collector.problems(step[0], self.places), self.config.train.group
            groups: dict[int, list[Rollout]] = {}
            # TRL does not give the engine's log p to reward functions. Zeros take its place: refusals.py refuses the
            # settings and methods that read it.
            for number, problem in enumerate(problems):
                prompt, group = self.collector.prompt(problem), []
                for response in completion_ids[number * size : (number + 1) * size]:
                    finished = bool(response) and response[-1] in self.eos_token_ids
                    group.append(Rollout(prompt, response, [0.0] * len(response), finished))
                groups[number] = group
            judged = judge_rollouts(self.parts.task, self.parts.verifier, self.parts.tokenizer, problems, groups)
            self.answered = []
            for number, (place, problem) in enumerate(zip(self.places, problems, strict=True)):
                self.answered.append(answered_group(place, problem, groups[number], judged[number]))
            self.collector.check_verdicts(step[0], self.answered)
        if step[0] == 1 or step[0] % self.config.checkpoint.every == 0:
            shown = of_all(self.answered[:SHOWN_PROBLEMS])
            if ranks.own_rank() == 0:
                self.collector.keep_samples(step[0], shown)
        return [reward for group in self.answered for reward in group.rewards]

    # Updates

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the schedule of every cell: a linear rise over the first steps, not over updates."""
        updates, warmup = updates_of_step(self.config), max(self.config.train.warmup_steps, 1)
        if optimizer is None:
            optimizer = self.optimizer

        def share_of_rate(done_updates: int) -> float:
            step = done_updates // updates + 1
            return min(1.0, step / warmup)

        self.lr_scheduler = LambdaLR(optimizer, share_of_rate)
        return self.lr_scheduler

    def training_step(self, *inputs: Any, **named: Any) -> Any:
        self.parts.heartbeat.step = self.step
        loss = super().training_step(*inputs, **named)
        if not torch.isfinite(loss):
            raise CellFailure(f"the loss of the policy is {loss.item()}")
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save as TRL does, and hand the folder over."""
        super()._save_checkpoint(model, trial)
        saved = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save:
            # Pickled, and read by nothing. With FSDP it may be missing.
            (saved / TRAINING_ARGS_NAME).unlink(missing_ok=True)
        self.training.end_checkpoint(saved)

    # The record

    def begin_step(self) -> None:
        self.watch, self.began = Stopwatch(self.parts.heartbeat), time.perf_counter()
        self.updates = Updates()
        self.rows: list[list[Tensor]] = [[]]  # of the parts of each update
        self.logged: dict[str, list[float]] = defaultdict(list)  # by TRL
        self.signal: PortableSignal | None = None
        self.memory = self.method.state()  # of the controls, which observe the step before its last update

    def _log_signal(self, signal: PortableSignal, mode: str) -> None:
        super()._log_signal(signal, mode)
        self.signal = signal

    def _log_part(self, mode: str, signal: PortableSignal, now: Scored, part: Mapping[str, Any]) -> None:
        super()._log_part(mode, signal, now, part)
        self.updates.add_part(self.method.composed, *self.method.present(signal, now.logp, **part))
        self.rows[-1].append(part["rows"])

    def add_update(self, logs: Mapping[str, Any]) -> None:
        """Add TRL's log of an update; after the last one of a step, hand over the record of the step."""
        # TRL has added up the parts of all ranks, and so will the record.
        self.updates.add_update(logs["loss"] / ranks.count(), logs["grad_norm"])
        self.rows.append([])
        if not math.isfinite(logs["grad_norm"]):
            raise CellFailure(f"the gradient of the policy is not finite (its norm is {logs['grad_norm']})")
        for key, value in logs.items():
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if is_number and key not in OURS and not key.startswith(LOGGED):
                self.logged[f"trl/{key}"].append(float(value))
        if self.state.global_step % updates_of_step(self.config) == 0:
            self.training.end_step(self.record())
            self.begin_step()

    def record(self) -> dict[str, float]:
        """Return the record of the step whose updates are all done, on all ranks."""
        assert self.signal is not None
        own_tokens = sum(group.tokens for group in self.answered)
        collected = Collected(self.answered, sum(ranks.each(own_tokens)), 0, {})
        self.generated += collected.generated
        rows = len(self.places) * self.config.train.group
        own_rows = torch.arange(ranks.own_rank() * rows, (ranks.own_rank() + 1) * rows)
        fixed, _, _ = self.signal.part(own_rows)
        batch = collected.batch(self.config.rollout.max_new_tokens, str(fixed.weights_T.device))
        generated = {
            "tokens/generated": float(collected.generated),
            "tokens/generated_total": float(self.generated),
        }
        composed = self.method.composed
        record = record_of_step(composed, batch, fixed, collected, {}, self.updates, {}, generated)
        record |= composed.logged_state()
        record |= {key: float(np.mean(values)) for key, values in self.logged.items()}
        record |= self.dynamics_of(self.signal)
        seconds = self.watch.seconds
        # All of the step that has no phase of its own.
        seconds["time/update_s"] = time.perf_counter() - self.began - sum(seconds.values())
        return record | seconds

    def dynamics_of(self, signal: PortableSignal) -> dict[str, float]:
        """Return the predicted change of entropy, and on some steps the measured one, which takes a forward pass."""
        every = self.config.dynamics.every
        if not every:
            return {}
        with self.watch.phase("dynamics"):
            minibatches = []
            for parts in self.rows[: self.config.train.updates]:  # each is in every epoch
                _, minibatch, _ = signal.part(ranks.gather(torch.cat(parts)))
                minibatches.append(minibatch)
            done_steps = self.state.global_step // updates_of_step(self.config)
            after_T = self.entropy_now() if done_steps % every == 0 else None
            temperature = self.config.rollout.temperature
            # The controls have observed this step already; the updates were made with their memory from before it.
            observed = self.method.state()
            self.method.load_state(self.memory)
            with ranks.as_only_rank():  # on the responses of all ranks
                record = dynamics.of_step(
                    self.method.composed, signal.fixed, signal.batch, minibatches, after_T, temperature
                )
            self.method.load_state(observed)
            return record

    @torch.no_grad()
    def entropy_now(self) -> Tensor:
        """Return the present entropy of the tokens of the step, in the order of its responses."""
        scored = []
        for part in self._buffered_inputs:
            now = self._score_inputs(self.model, part)
            scored.append({**part, "entropy": now.entropy})
        columns, mask, _ = gathered(scored, {"entropy": "entropy"})
        return columns["entropy"][mask]


class StepCallback(TrainerCallback):
    """Tells a RecordedTrainer of the logs of its updates."""

    def __init__(self, trainer: RecordedTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.trainer.begin_step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:  # the others are about the whole run
            self.trainer.add_update(logs)


# The settings of a cell in the terms of GRPOConfig


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
        "gradient_checkpointing": config.hardware.recompute > 0,
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
