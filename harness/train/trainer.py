"""The loop of reinforcement fine-tuning, top to bottom as an algorithm box."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from harness import ranks
from harness.base import seeds
from harness.base.errors import CellFailure
from harness.cells.checksums import CHECKPOINTS
from harness.cells.evaluations import evaluation_due
from harness.cells.log import Ending, MetricsLog
from harness.config import MICRO_BATCH
from harness.methods.batch import TokenBatch, TokenStats
from harness.methods.composition import Signal
from harness.rollout import proof
from harness.tokens import dynamics, metrics
from harness.tokens.correction import correct
from harness.tokens.metrics import Stopwatch
from harness.train import invariants
from harness.train.base_responses import BaseResponses
from harness.train.checkpoint import Checkpoints
from harness.train.collect import Collected, Collector
from harness.train.evaluate import Evaluator, evaluate_cell
from harness.train.first_pass import FirstPass, first_pass
from harness.train.parts import Parts
from harness.train.policy import Critic, Policy
from harness.train.record import Updates, mean_loss, record_of_step


class Trainer:
    def __init__(self, parts: Parts, folder: Path, checkpoints: Checkpoints | None = None) -> None:
        self.parts, self.folder = parts, folder
        self.config, self.method, self.engine = parts.config, parts.method, parts.engine
        self.policy, self.critic = parts.policy, parts.critic
        self.collector = Collector(parts, folder)
        self.log = MetricsLog(folder)
        self.checkpoints = checkpoints or Checkpoints(folder / CHECKPOINTS, parts.cell, parts.config.checkpoint.keep)
        self.done_steps = -1  # -1: not even the evaluation before training is done
        self.ending = Ending(parts.config.stop)

    def run(self, on_durable: Callable[[int], None], leaving: Callable[[], bool] = lambda: False) -> None:
        """Train from the last checkpoint to the end, or until rank 0 is asked to stop (`leaving`).

        `on_durable` is called with each step whose checkpoint is on disk.
        """
        self.resume()
        if self.done_steps > 0:
            on_durable(self.done_steps)  # less than the last call of an earlier process if a checkpoint is damaged
        # The first step must sample with the weights of the checkpoint, which the engine does not have yet.
        self.synchronise(self.done_steps)
        early = False
        while not early and self.done_steps < self.last_step:
            step = self.done_steps + 1
            watch = Stopwatch(self.parts.heartbeat)
            self.parts.heartbeat.step = step
            # Step 0 trains nothing: its line says how the problems were selected, and has the scores before training.
            record = dict(self.parts.pool.record) if step == 0 else self.train_step(step, watch)
            # Before the evaluation: this may make the step the last one, which is always evaluated. The numbers are
            # those of all ranks, so each rank decides the same; the scores below are there on rank 0 alone.
            self.ending.add({"step": step, "metrics": record})
            with watch.phase("evaluate"):  # also without an evaluation, so that each line of the log has its seconds
                if self.evaluation_due(step):
                    record |= self.evaluate(step)
            if ranks.own_rank() == 0:
                self.log.append(step, time.time(), record | watch.seconds)
            self.done_steps = step
            early = ranks.of_first(leaving())  # one rank's answer for all, or some would wait for the others for ever
            due = step > 0 and (early or step % self.config.checkpoint.every == 0 or step == self.last_step)
            self.announce_durable(on_durable, wait=due)  # one checkpoint is written at a time
            if due:
                self.save()  # after the line of the step is in the log: `resume` cuts the log at the checkpoint's step
        self.announce_durable(on_durable, wait=True)
        # The older ones that are kept during training are for a newest one that turns out to be damaged.
        self.checkpoints.keep(1)

    def announce_durable(self, on_durable: Callable[[int], None], *, wait: bool) -> None:
        """Call `on_durable` if a checkpoint has been written since the last time."""
        if (step := self.checkpoints.written(wait=wait)) is not None:
            on_durable(step)

    @property
    def last_step(self) -> int:
        """The step at which training ends, as far as it is known."""
        return self.config.train.steps if self.ending.step is None else self.ending.step

    def train_step(self, step: int, watch: Stopwatch) -> dict[str, float]:
        """Sample, judge, update, and hand the new weights to the engine; return the record of the step.

        With a lag, the engine samples for a later step while this one is trained.
        """
        train, method, policy = self.config.train, self.method, self.policy
        method.start_step(step, train.steps)
        # Each draw of a step (problems, responses, choices of controls, proof) has a seed from the cell's seed and the
        # step, and never from a generator's state: a resumed run draws the same, and so do all methods of one seed.
        collected = self.collector.collect(step, watch)

        # Before the update: everything that a method fixes over the whole rollout batch. The old log-probabilities are
        # the trainer's own, since the engine's differ in rounding, and the ratio of the first update would not be 1.
        with watch.phase("stats"):
            batch = self.batch_of(collected, step)
            minibatches = list(batch.split(train.updates))
            needs = method.needs
            if self.config.dynamics.every:
                needs |= dynamics.NEEDS
            first = None if train.loss_scale == MICRO_BATCH else first_pass(policy, method, minibatches[0], needs)
            old = self.stats_before(batch, needs, first)
            invariants.check_statistics(old, policy.vocabulary)
            mismatch = metrics.of_mismatch(batch, old.logp, self.config.correction)
            if not collected.lag:  # with a lag, engine and trainer are two policies, and may differ by any amount
                proof.check_log_ratios(mismatch, self.config.mismatch, policy.dtype)
            # Here the ranks exchange numbers: the statistics of methods, and the denominators of each mini-batch's
            # loss, are over the tokens of all ranks. Below, only `for_step` and `add_base_gradient` may do so again.
            uncorrected = method.signal(old, batch, minibatches)
            # After the method: the correction must reach the gradient, and none of the method's own statistics.
            signal = correct(uncorrected, batch, self.config.correction)
        if not torch.isfinite(signal.weights_T).all() or not torch.isfinite(signal.advantages_T).all():
            raise CellFailure(f"method {method.name} gives weights or advantages that are not finite")

        updates = Updates()
        with watch.phase("update"):
            for minibatch in minibatches * train.epochs:
                loss = 0.0
                # Before the split into micro-batches, whose size is a memory setting and must not change results.
                if method.marks_steps:
                    now = with_reference(policy.stats(minibatch, method.needs), old, minibatch)
                    signal = method.for_step(now, signal, minibatch)
                if train.loss_scale == MICRO_BATCH:  # unless that is asked for
                    parts = policy.micro_batches(minibatch)
                    signal = signal.by_micro_batch(parts, len(minibatch) * ranks.count())
                else:
                    parts = self.micro_batches(method.contributing(minibatch, signal), first)
                for part in parts:
                    current, fixed = self.stats_during(part, old, first), signal.at(part.index_T)
                    # A summand of the mini-batch's loss over all ranks, by its denominators. So gradients are added up,
                    # over parts by `backward` and over ranks by FSDP, and never averaged.
                    loss += policy.backward(method.loss(current, fixed, part))
                    updates.add_part(method, current, fixed, part)
                if self.parts.base_responses is not None:
                    number = (step - 1) * len(minibatches) * train.epochs + len(updates.norms)
                    updates.base_losses.append(self.add_base_gradient(self.parts.base_responses, number, minibatch))
                if not updates.norms:  # later the policy has moved, and the ratio may be anything
                    invariants.check_first_ratio(updates.log_ratios, policy.dtype)
                # Also proves that it changed a weight. Otherwise an optimizer that has lost its parameters would go
                # unnoticed: the engine's weights are compared with the policy's, and would agree.
                norm = policy.step(step)
                updates.add_update(loss, norm)
                first = None  # of a policy that is no more
        # Passes of its own, so that activations of policy and critic are never in memory at once. The order is free:
        # the critic's targets were fixed with the signal.
        critic_record = self.train_critic(minibatches, signal, step, watch) if self.critic else {}
        dynamics_record = self.dynamics_of(step, signal, batch, minibatches, watch)
        self.collector.finish(watch)  # until then the engine may be sampling with the weights that it has
        # Before the next step samples, and after everything that needs the memory which the engine takes back.
        with watch.phase("sync"):
            self.synchronise(step)

        generated = self.collector.record_of(collected)
        record = record_of_step(method, batch, uncorrected, collected, mismatch, updates, critic_record, generated)
        # The record has numbers of all ranks, so that the memory of a control is the same on each of them.
        method.observe(record)
        # After `observe`: the logged state is the one that the next step uses.
        record |= method.logged_state()
        return record | dynamics_record  # which no method has observed: an instrument changes nothing

    # The parts of a step

    def batch_of(self, collected: Collected, step: int) -> TokenBatch:
        """Return this rank's rollout batch of a step."""
        # By the step too: controls that draw at random would otherwise draw the same in every step.
        seed = seeds.derive("method", self.parts.seed, step)
        progress = (step - 1) / self.config.train.steps
        budget, base_right = self.config.rollout.max_new_tokens, self.parts.pool.base_right
        return collected.batch(budget, self.policy.device, base_right, seed=seed, progress=progress)

    def stats_before(self, batch: TokenBatch, needs: frozenset[str], first: FirstPass | None = None) -> TokenStats:
        """Return the statistics of the policy before the update, with the columns that are needed.

        Those of the responses of `first` are taken from it.
        """
        reference = self.parts.reference
        old = self.policy.stats(batch, needs) if first is None else first.completed(batch, self.policy, needs)
        values = self.critic.values(batch) if self.critic else None
        ref_logp = reference.logp_without_adapters(batch) if reference else None
        return replace(old, values=values, ref_logp=ref_logp)

    def micro_batches(self, responses: TokenBatch, first: FirstPass | None) -> list[TokenBatch]:
        """Return the parts of a mini-batch: the part that the first pass has computed already, then the others."""
        if first is None:
            return self.policy.micro_batches(responses)
        computed, others = first.divide(responses)
        parts = self.policy.micro_batches(others) if len(others) else []
        return [computed, *parts] if len(computed) else parts

    def stats_during(self, part: TokenBatch, old: TokenStats, first: FirstPass | None = None) -> TokenStats:
        """Return the statistics of the present policy on a part of a mini-batch, with gradient."""
        if first is not None and first.contains(part):
            current = first.at(part)
        else:
            current = self.policy.current(part, self.method.needs)
        return with_reference(current, old, part)

    def add_base_gradient(self, base: BaseResponses, update: int, minibatch: TokenBatch) -> float:
        """Add the gradient of right responses of the model before training; return this rank's part of their loss.

        Their mean loss counts by their number, as a share of that of the mini-batch's responses.
        """
        method, responses = self.method, minibatch.global_responses()
        count, budget = round(method.base_share * responses), self.config.rollout.max_new_tokens
        batch, base_logp_T = base.batch(update, count, budget, self.policy.device)
        scale_T = method.objective.scale(batch, torch.ones_like(base_logp_T)) * batch.global_responses() / responses
        loss = 0.0
        for part in self.policy.micro_batches(batch):
            logp_T = self.policy.current(part, frozenset()).logp
            part_loss = method.base_loss(logp_T, base_logp_T[part.index_T], scale_T[part.index_T])
            loss += self.policy.backward(part_loss)
        return loss

    def synchronise(self, step: int) -> None:
        """Load the policy's weights into the engine, and check that it samples with them."""
        self.engine.load(self.policy.module)
        # By the step: only some columns of each weight are compared, and others each time.
        seed = seeds.derive("proof", self.parts.seed, step)
        proof.check_engine_weights(self.engine, self.policy.module, self.policy.dtype, seed)

    def train_critic(
        self, minibatches: list[TokenBatch], signal: Signal, step: int, watch: Stopwatch
    ) -> dict[str, float]:
        """Update the critic on the mini-batches of the policy's updates; return its record."""
        assert self.critic is not None
        losses, norms = [], []
        with watch.phase("critic"):
            for minibatch in minibatches * self.config.train.epochs:
                loss = 0.0
                for part in self.critic.micro_batches(minibatch):
                    part_loss = self.method.value_loss(self.critic.current(part), signal.at(part.index_T))
                    loss += self.critic.backward(part_loss)
                losses.append(loss)
                norms.append(self.critic.step(step))
        return {"loss/critic": mean_loss(losses), "gradient/critic_norm": float(np.mean(norms))}

    def dynamics_of(
        self, step: int, signal: Signal, batch: TokenBatch, minibatches: list[TokenBatch], watch: Stopwatch
    ) -> dict[str, float]:
        """Return the predicted change of entropy, and on some steps the measured one, which takes a forward pass."""
        every = self.config.dynamics.every
        if not every:
            return {}
        with watch.phase("dynamics"):
            after_T = self.policy.stats(batch).entropy if step % every == 0 else None
            return dynamics.of_step(self.method, signal, batch, minibatches, after_T, self.policy.temperature)

    # Evaluation, samples, checkpoints

    def evaluation_due(self, step: int) -> bool:
        return evaluation_due(self.config, step, self.last_step)

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluate the engine's weights on all evaluation tasks, as `evaluate_cell` does."""
        parts, module = self.parts, self.policy.module
        return evaluate_cell(
            Evaluator.of_config(self.config, self.engine, parts.tokenizer, parts.verifier, parts.chat, module),
            self.folder,
            self.config,
            parts.evaluation_tasks,
            seed=parts.seed,
            trained_on=parts.task.name,
            step=step,
            on_progress=parts.heartbeat.forward,
        )

    def learners(self) -> dict[str, Policy | Critic]:
        return {"policy": self.policy} | ({"critic": self.critic} if self.critic else {})

    def save(self) -> None:
        """Begin to write a checkpoint."""
        states = {who: learner.state() for who, learner in self.learners().items()}
        tensors = {f"{who}.{name}": x for who, state in states.items() for name, x in state.items()}
        # On all ranks: the collector gathers the rollouts in flight, so that any number of ranks may resume.
        rest = {"method": self.method.state(), "rollouts": self.collector.state()}
        self.checkpoints.save(self.done_steps, tensors, rest)

    def resume(self) -> None:
        """Take over the newest whole checkpoint, if there is one."""
        checkpoint = self.checkpoints.latest()
        if checkpoint is not None:
            self.done_steps = checkpoint.step
            self.method.load_state(checkpoint.rest["method"])
            self.collector.load_state(checkpoint.rest["rollouts"])
            for who, learner in self.learners().items():
                learner.load_state(checkpoint.of(who), partial(checkpoint.fill, who))
        self.resume_log()

    def resume_log(self) -> None:
        """Cut the log at the checkpoint from which training goes on."""
        if ranks.own_rank() == 0:
            # Later steps are trained and logged again; without a checkpoint all are, since `done_steps` is -1.
            self.log.truncate(self.done_steps)
            # From the log, which alone has it: a cell that ended early must not train on when it is resumed, and steps
            # without a signal are counted on.
            self.ending = Ending.of(self.log.read(), self.config.stop)
        self.ending = ranks.of_first(self.ending)


def with_reference(current: TokenStats, old: TokenStats, part: TokenBatch) -> TokenStats:
    """Return statistics of the present policy with those of the model before training, which do not change."""
    ref_logp_T = None if old.ref_logp is None else old.ref_logp[part.index_T]
    return replace(current, ref_logp=ref_logp_T)
