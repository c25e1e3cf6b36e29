"""The loop of reinforcement fine-tuning, top to bottom as an algorithm box."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness.base import files, seeds
from harness.base.errors import CellFailure
from harness.batch import TokenBatch, TokenStats
from harness.cells import evaluation_files, heartbeat
from harness.cells.checkpoint_seal import FOLDER as CHECKPOINTS
from harness.cells.log import MetricsLog, collapse
from harness.composition import Signal
from harness.dist import ranks
from harness.dist.together import led
from harness.rollout import proof
from harness.tokens import dynamics, metrics
from harness.tokens.correction import correct
from harness.tokens.metrics import Stopwatch
from harness.train import invariants
from harness.train.checkpoint import Checkpoints
from harness.train.collect import Collector
from harness.train.evaluate import Sampler, evaluate
from harness.train.parts import Parts
from harness.train.policy import Critic, Policy, context_of
from tasks import Task, Verdict


class Trainer:
    def __init__(self, parts: Parts, folder: Path, checkpoints: Checkpoints | None = None) -> None:
        self.parts, self.folder = parts, folder
        self.config, self.method, self.engine = parts.config, parts.method, parts.engine
        self.policy, self.critic = parts.policy, parts.critic
        self.collector = Collector(parts, folder)
        self.log = MetricsLog(folder)
        self.checkpoints = checkpoints or Checkpoints(folder / CHECKPOINTS, parts.cell)
        self.done_steps = -1  # -1: not even the evaluation before training is done
        self.collapsed: int | None = None  # the step after which training ends early

    def run(self, on_durable: Callable[[int], None], leaving: Callable[[], bool] = lambda: False) -> None:
        """Train to the end from wherever the last checkpoint stands, or until rank 0 finds that it is `leaving`;
        `on_durable` hears of steps that are safe."""
        self.resume()
        if self.done_steps > 0:
            on_durable(self.done_steps)  # which is less than was told before where a checkpoint has been damaged
        self.synchronise(self.done_steps)
        early = False
        while not early and (step := self.done_steps + 1) <= self.last_step:
            watch, heartbeat.here.step = Stopwatch(), step
            record = self.train_step(step, watch) if step else dict(self.parts.pool.record)
            self.collapsed = collapse([{"step": step, "metrics": record}], self.config.stop.entropy_below)
            with watch.phase("evaluate"):
                record |= self.evaluate(step) if self.evaluation_due(step) else {}
            if ranks.number() == 0:
                self.log.append(step, time.time(), record | watch.seconds)
            self.done_steps = step
            early = ranks.of_first(leaving())
            due = step > 0 and (early or step % self.config.checkpoint.every == 0 or step == self.last_step)
            self.tell(on_durable, wait=due)  # a checkpoint waits for the one before it
            if due:
                self.save()
        self.tell(on_durable, wait=True)
        self.checkpoints.keep(1)

    def tell(self, on_durable: Callable[[int], None], *, wait: bool) -> None:
        if (step := self.checkpoints.written(wait=wait)) is not None:
            on_durable(step)

    @property
    def last_step(self) -> int:
        """Returns the step at which training ends, as far as it is known."""
        return self.config.train.steps if self.collapsed is None else self.collapsed

    def train_step(self, step: int, watch: Stopwatch) -> dict[str, float]:
        train, method, policy = self.config.train, self.method, self.policy
        collected = self.collector.collect(step, watch)
        groups, verdicts = collected.groups, collected.verdicts
        with watch.phase("stats"):
            rewards = [float(v == Verdict.RIGHT) for v in verdicts]
            batch = TokenBatch.of(
                groups,
                rewards,
                self.config.rollout.max_new_tokens,
                policy.device,
                places=collected.places,
                seed=seeds.derive("method", self.parts.seed, step),
                progress=(step - 1) / train.steps,
            )
            invariants.check_rewards(rewards)
            old = self.stats_before(batch, sum_p2=self.config.dynamics.every > 0)
            invariants.check_statistics(old, policy.vocabulary)
            mismatch = metrics.of_mismatch(batch, old.logp, self.config.correction)
            if not collected.lag:  # otherwise the two are other policies
                self.check_mismatch(mismatch)
            minibatches = list(batch.split(train.updates))
            invariants.check_denominators(batch, minibatches)
            uncorrected = method.signal(old, batch, minibatches)
            signal = correct(uncorrected, batch, self.config.correction)
        if not torch.isfinite(signal.weights_T).all() or not torch.isfinite(signal.advantages_T).all():
            raise CellFailure(f"method {method.name} gives weights or advantages that are not finite")

        log_ratios: list[Tensor] = []
        touched: list[dict[str, Tensor]] = []
        logged: list[dict[str, Tensor]] = []
        losses: list[float] = []
        norms: list[float] = []
        with watch.phase("update"):
            for minibatch in minibatches * train.epochs:
                loss = 0.0
                if method.marks_steps:
                    signal = method.for_step(self.stats_now(minibatch, old), signal, minibatch)
                for part in policy.micro_batches(method.contributing(minibatch, signal)):
                    current, fixed = self.stats_during(part, old), signal.at(part.index_T)
                    part_loss = method.loss(current, fixed, part)
                    policy.backward(part_loss)
                    loss += part_loss.item()
                    now = current.detach()
                    log_ratios.append(now.logp - fixed.old.logp)
                    touched.append(method.touched(now, fixed, part))
                    logged.append(method.update_metrics(now, fixed, part))
                if not norms:
                    invariants.check_first_ratio(log_ratios, policy.dtype)
                losses.append(loss)
                norms.append(policy.step(step))
        value_record = self.train_critic(minibatches, signal, step, watch) if self.critic else {}
        dynamics_record = self.dynamics_of(step, signal, batch, minibatches, watch)
        with watch.phase("sync"):
            self.synchronise(step)

        record = {
            **metrics.of_rollouts(groups, batch, [str(v) for v in verdicts]),
            **mismatch,
            **metrics.of_signal(uncorrected, batch),
            **metrics.of_answers(collected.judged, collected.answer_tokens, uncorrected, batch),
            **metrics.of_ratios(log_ratios, touched),
            **metrics.of_updates(logged),
            **method.metrics(uncorrected, batch),
            **value_record,
            "loss/policy": mean_of_sums(losses),
            "gradient/norm": float(np.mean(norms)),
            "tokens/trained": batch.global_tokens(),
            **self.collector.record_of(collected),
        }
        method.observe(record)
        for name, state in method.state().items():
            record |= {f"state/{name}/{key}": value for key, value in state.items()}
        return record | dynamics_record  # which no method has observed: an instrument changes nothing

    # The parts of a step

    def stats_before(self, batch: TokenBatch, *, sum_p2: bool = False) -> TokenStats:
        """All that methods may ask of the policy before the update."""
        needs = self.method.needs | ({"sum_p2"} if sum_p2 else set())
        old, reference = self.policy.stats(batch, needs), self.parts.reference
        ref_logp_T = reference.stats(batch, entropy=False).logp if reference else None
        values_T = self.critic.values(batch) if self.critic else None
        return TokenStats(old.logp, old.entropy, old.sum_p2, old.sum_p2_logp, values_T, ref_logp_T)

    def stats_now(self, minibatch: TokenBatch, old: TokenStats) -> TokenStats:
        """The present policy on a whole mini-batch, without gradient."""
        now = self.policy.stats(minibatch)
        return TokenStats(
            now.logp, now.entropy, ref_logp=None if old.ref_logp is None else old.ref_logp[minibatch.index_T]
        )

    def stats_during(self, part: TokenBatch, old: TokenStats) -> TokenStats:
        """The present policy on a part of a mini-batch, with gradient."""
        current = self.policy.current(part, self.method.needs)
        ref_logp_T = None if old.ref_logp is None else old.ref_logp[part.index_T]
        return TokenStats(current.logp, current.entropy, ref_logp=ref_logp_T)

    def synchronise(self, step: int) -> None:
        """The engine takes over the policy's weights, and proves it."""
        self.engine.load(self.policy.module)
        proof.check_engine_weights(
            self.engine, self.policy.module, self.policy.dtype, seeds.derive("proof", self.parts.seed, step)
        )

    def check_mismatch(self, mismatch: dict[str, float]) -> None:
        dtype = self.policy.dtype
        bounds = getattr(self.config.mismatch, str(dtype).removeprefix("torch."))
        proof.check_log_ratios(mismatch, bounds, dtype)

    def train_critic(
        self, minibatches: list[TokenBatch], signal: Signal, step: int, watch: Stopwatch
    ) -> dict[str, float]:
        assert self.critic is not None
        losses, norms = [], []
        with watch.phase("critic"):
            for minibatch in minibatches * self.config.train.epochs:
                loss = 0.0
                for part in self.critic.micro_batches(minibatch):
                    part_loss = self.method.value_loss(self.critic.current(part), signal.at(part.index_T))
                    self.critic.backward(part_loss)
                    loss += part_loss.item()
                losses.append(loss)
                norms.append(self.critic.step(step))
        return {"loss/critic": mean_of_sums(losses), "gradient/critic_norm": float(np.mean(norms))}

    def dynamics_of(
        self, step: int, signal: Signal, batch: TokenBatch, minibatches: list[TokenBatch], watch: Stopwatch
    ) -> dict[str, float]:
        """Predicts what the update does to the entropy; and on some steps, for a forward pass, measures what it did."""
        every = self.config.dynamics.every
        if not every:
            return {}
        with watch.phase("dynamics"):
            after_T = self.policy.stats(batch).entropy if step % every == 0 else None
            return dynamics.of_step(self.method, signal, batch, minibatches, after_T, self.config.rollout.temperature)

    # Evaluation, samples, checkpoints

    def evaluation_due(self, step: int) -> bool:
        every = self.config.eval.every
        return step in (0, self.last_step) or (every > 0 and step % every == 0)

    def evaluate(self, step: int) -> dict[str, float]:
        """By rank 0, where each rank samples and judges its share."""
        context = None if self.config.eval.beyond_context else context_of(self.policy.module.config)
        seed = seeds.derive("evaluate", self.parts.seed, step)
        sampler = Sampler(self.engine, self.parts.tokenizer, seed, self.parts.chat, context)
        record: dict[str, float] = {}
        for name, task in self.parts.evaluation_tasks.items():
            with led(partial(sampler.sample, task, self.parts.verifier)) as sample:
                if sample is not None:
                    record |= self.scores(step, name, task, dataclasses.replace(sampler, helped=sample))
        return record

    def scores(self, step: int, name: str, task: Task, sampler: Sampler) -> dict[str, float]:
        settings = self.config.eval.of(name)
        result = evaluate(
            task,
            sampler,
            self.parts.verifier,
            split=settings.split,
            problems=settings.problems,
            samples=settings.samples,
            temperature=settings.temperature,
            max_new_tokens=self.config.rollout.max_new_tokens,
            max_failures=self.config.verify.max_failures,
        )
        wanted = [problem.id for problem in task.problems(settings.split)[: settings.problems]]
        invariants.check_evaluation(result.problems, wanted, result.right, settings.samples)
        record = {
            "task": name,
            "step": step,
            "problems": result.problems,
            "right": result.right,
            "right_distinct": result.right_distinct,
            "solutions": result.solutions,
            "verdicts": result.verdicts,
            "metrics": result.metrics,
            "flags": task.flags(self.parts.task.name),
        }
        evaluation_files.write(self.folder, record)
        files.write_lines(self.folder / "samples" / f"evaluate-{name}-{step:06d}.jsonl", result.samples)
        return {f"eval/{name}/{key}": value for key, value in result.metrics.items()}

    def learners(self) -> dict[str, Policy | Critic]:
        return {"policy": self.policy} | ({"critic": self.critic} if self.critic else {})

    def save(self) -> None:
        """Begins to write a checkpoint."""
        tensors = {
            f"{who}.{name}": x for who, learner in self.learners().items() for name, x in learner.state().items()
        }
        rest = {"method": self.method.state(), "rollouts": self.collector.state()}
        self.checkpoints.save(self.done_steps, tensors, rest)

    def resume(self) -> None:
        found = self.checkpoints.latest()
        if found is not None:
            self.done_steps = found.step
            self.method.load_state(found.rest["method"])
            self.collector.load_state(found.rest["rollouts"])
            for who, learner in self.learners().items():
                learner.load_state(found.of(who), partial(found.fill, who))
        if ranks.number() == 0:
            self.log.truncate(self.done_steps)
            self.collapsed = collapse(self.log.read(), self.config.stop.entropy_below)
        self.collapsed = ranks.of_first(self.collapsed)


def mean_of_sums(losses: list[float]) -> float:
    """Returns the mean of the mini-batches' losses, of which each rank has a part."""
    return ranks.total(torch.tensor(losses, dtype=torch.float64)).mean().item()
