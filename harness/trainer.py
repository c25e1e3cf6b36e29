"""The loop of reinforcement fine-tuning, top to bottom as an algorithm box."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.base import files, ranks, seeds
from harness.base.errors import CellFailure
from harness.batch import Rollout, TokenBatch, TokenStats
from harness.composition import Method, Signal
from harness.config import Config
from harness.record.log import MetricsLog
from harness.rollout import proof
from harness.rollout.protocol import Engine, OnGroup, Sampling
from harness.rollout.rendering import Chat, render
from harness.rollout.together import led
from harness.tokens import dynamics, metrics
from harness.tokens.correction import correct
from harness.tokens.metrics import Stopwatch
from harness.train import checkpoint
from harness.train.evaluate import Sampler, evaluate
from harness.train.filter import Pool
from harness.train.policy import Critic, Policy, context_of
from harness.verify.alongside import Alongside
from harness.verify.failures import TooManyFailures, check_failures
from tasks import Problem, Task, Verdict, Verifier

# Before the first update of a step the policy is the one that `old` came from, so the ratio is 1 up to rounding: for
# all tokens, or for 99 % of them where a few rare ones may be off by any amount.
RATIO_TOLERANCE: dict[torch.dtype, tuple[Callable[[Tensor], Tensor | float], float]] = {
    torch.float32: (torch.max, 1e-3),
    torch.bfloat16: (metrics.p99, 0.5),
}


@dataclass(frozen=True)
class Parts:
    """All that a cell trains with."""

    config: Config
    seed: int
    method: Method
    task: Task
    evaluation_tasks: list[Task]
    pool: Pool  # the problems that are trained on
    policy: Policy
    critic: Critic | None
    reference: Policy | None  # the model before training
    engine: Engine
    tokenizer: Any
    verifier: Verifier
    chat: Chat


class Trainer:
    def __init__(self, parts: Parts, folder: Path) -> None:
        self.parts, self.folder = parts, folder
        self.config, self.method, self.engine = parts.config, parts.method, parts.engine
        self.policy, self.critic = parts.policy, parts.critic
        self.places = places(parts.config.train.prompts, parts.config.train.updates)
        self.log = MetricsLog(folder)
        self.done_steps = -1  # -1: not even the evaluation before training is done

    def run(self, on_durable: Callable[[int], None]) -> None:
        """Train to the end from wherever the last checkpoint stands; `on_durable` hears of steps that are safe."""
        self.resume()
        self.synchronise(self.done_steps)
        for step in range(self.done_steps + 1, self.config.train.steps + 1):
            watch = Stopwatch()
            record = self.train_step(step, watch) if step else dict(self.parts.pool.record)
            with watch.phase("evaluate"):
                record |= self.evaluate(step) if self.evaluation_due(step) else {}
            if ranks.number() == 0:
                self.log.append(step, time.time(), record | watch.seconds)
            self.done_steps = step
            if step and (step % self.config.checkpoint.every == 0 or step == self.config.train.steps):
                self.save()
                on_durable(step)

    def train_step(self, step: int, watch: Stopwatch) -> dict[str, float]:
        train, method, policy = self.config.train, self.method, self.policy
        problems = self.prompts(step)
        with Alongside(partial(self.judge, problems)) as judging:
            with watch.phase("rollout"):
                groups = self.sample(problems, step, judging.add)
                self.engine.rest()  # its memory is the update's until the next load
            with watch.phase("verify"):  # what sampling has not hidden
                verdicts = judging.verdicts()
        assert len(verdicts) == sum(map(len, groups))
        if ranks.number() == 0 and (step == 1 or step % self.config.checkpoint.every == 0):
            self.keep_samples(step, problems, groups, verdicts)
        self.check_verdicts(step, problems, groups, verdicts)
        with watch.phase("stats"):
            rewards = [float(v == Verdict.RIGHT) for v in verdicts]
            batch = TokenBatch.of(
                groups,
                rewards,
                self.config.rollout.max_new_tokens,
                policy.device,
                places=self.places,
                seed=seeds.derive("method", self.parts.seed, step),
                progress=(step - 1) / train.steps,
            )
            old = self.stats_before(batch, sum_p2=self.config.dynamics.every > 0)
            mismatch = metrics.of_mismatch(batch, old.logp, self.config.correction)
            self.check_mismatch(mismatch)
            minibatches = list(batch.split(train.updates))
            uncorrected = method.signal(old, batch, minibatches)
            signal = correct(uncorrected, batch, self.config.correction)
        if not torch.isfinite(signal.weights_T).all() or not torch.isfinite(signal.advantages_T).all():
            raise CellFailure(f"method {method.name} gives weights or advantages that are not finite")

        log_ratios: list[Tensor] = []
        touched: list[dict[str, Tensor]] = []
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
                    log_ratios.append(current.logp.detach() - fixed.old.logp)
                    touched.append(method.touched(current.detach(), fixed, part))
                if not norms:
                    self.check_first_ratio(log_ratios)
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
            **metrics.of_ratios(log_ratios, touched),
            **method.metrics(uncorrected, batch),
            **value_record,
            "loss/policy": mean_of_sums(losses),
            "gradient/norm": float(np.mean(norms)),
            "tokens/generated": batch.global_tokens(),
            "time/judging_s": judging.seconds,  # beside the sampling and after it
        }
        method.observe(record)
        for name, state in method.state().items():
            record |= {f"state/{name}/{key}": value for key, value in state.items()}
        return record | dynamics_record  # which no method has observed: an instrument changes nothing

    # The parts of a step

    def prompts(self, step: int) -> list[Problem]:
        """The problems of a step, at this rank's places in an endless row of shuffled passes, which the seed and the
        step fix."""
        problems = self.parts.pool.problems
        size, start = len(problems), (step - 1) * self.config.train.prompts
        row = [start + place for place in self.places]
        orders = {
            number: np.random.default_rng(seeds.derive("order", self.parts.seed, number)).permutation(size)
            for number in {place // size for place in row}
        }
        return [problems[orders[place // size][place % size]] for place in row]

    def sample(
        self,
        problems: list[Problem],
        step: int,
        on_group: OnGroup | None = None,
        temperature: float | None = None,  # other than that of the configuration
    ) -> list[list[Rollout]]:
        return self.engine.generate(
            [render(self.parts.tokenizer, problem.prompt, self.parts.chat) for problem in problems],
            self.config.train.group,
            seeds=[seeds.derive("rollout", self.parts.seed, step, place) for place in self.places],
            temperature=self.config.rollout.temperature if temperature is None else temperature,
            max_new_tokens=self.config.rollout.max_new_tokens,
            on_group=on_group,
        )

    def judge(self, problems: list[Problem], groups: dict[int, list[Rollout]]) -> list[Verdict]:
        """On the responses to some of the problems, by their places."""
        texts = self.parts.tokenizer.batch_decode(
            [r.response for g in groups.values() for r in g], skip_special_tokens=True
        )
        asked = [problems[place] for place, group in groups.items() for _ in group]
        return self.parts.task.verdicts(list(zip(asked, texts, strict=True)), self.parts.verifier)

    def check_verdicts(
        self, step: int, problems: list[Problem], groups: list[list[Rollout]], verdicts: list[Verdict]
    ) -> None:
        try:
            check_failures([v for found in ranks.each(verdicts) for v in found], self.config.verify.max_failures)
        except TooManyFailures:
            if ranks.number() == 0:
                self.keep_samples(step, problems, groups, verdicts)  # which show why
            raise

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
        proof.check_weights(
            self.engine, self.policy.module, self.policy.dtype, seeds.derive("proof", self.parts.seed, step)
        )

    def check_mismatch(self, mismatch: dict[str, float]) -> None:
        dtype = self.policy.dtype
        bounds = getattr(self.config.mismatch, str(dtype).removeprefix("torch."))
        proof.check_log_ratios(mismatch, bounds, dtype)

    def check_first_ratio(self, log_ratios: list[Tensor]) -> None:
        measure, bound = RATIO_TOLERANCE[self.policy.dtype]
        if (worst := float(measure(torch.cat(log_ratios).abs()))) > bound:
            raise CellFailure(
                f"the importance ratio of the first update is not 1 (|log ratio| up to {worst:.2g}): the policy is not "
                "the one that the old log-probabilities came from"
            )

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
        return step in (0, self.config.train.steps) or (every > 0 and step % every == 0)

    def evaluate(self, step: int) -> dict[str, float]:
        """By rank 0, with the engines of all."""
        with led(self.engine) as sampling:
            return {} if sampling is None else self.scores(step, sampling)

    def scores(self, step: int, sampling: Sampling) -> dict[str, float]:
        record: dict[str, float] = {}
        context = None if self.config.eval.beyond_context else context_of(self.policy.module.config)
        seed = seeds.derive("evaluate", self.parts.seed, step)
        sampler = Sampler(sampling, self.parts.tokenizer, seed, self.parts.chat, context)
        for task in self.parts.evaluation_tasks:
            settings = self.config.eval.of(task.name)
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
            name = f"{task.name}-{step:06d}"
            files.write_json(
                self.folder / "evals" / f"{name}.json",
                {
                    "task": task.name,
                    "step": step,
                    "problems": result.problems,
                    "right": result.right,
                    "verdicts": result.verdicts,
                    "metrics": result.metrics,
                    "flags": task.flags(self.parts.task.name),
                },
            )
            files.write_lines(self.folder / "samples" / f"evaluate-{name}.jsonl", result.samples)
            record |= {f"eval/{task.name}/{key}": value for key, value in result.metrics.items()}
        return record

    def keep_samples(
        self, step: int, problems: list[Problem], groups: list[list[Rollout]], verdicts: list[Verdict]
    ) -> None:
        size = self.config.train.group
        lines = []
        for place, (problem, group) in enumerate(zip(problems[:8], groups, strict=False)):
            texts = self.parts.tokenizer.batch_decode([rollout.response for rollout in group])
            judged = verdicts[place * size : (place + 1) * size]
            lines.append({"problem": problem.id, "prompt": problem.prompt, "responses": texts, "verdicts": judged})
        files.write_lines(self.folder / "samples" / f"train-{step:06d}.jsonl", lines)

    def learners(self) -> dict[str, Policy | Critic]:
        return {"policy": self.policy} | ({"critic": self.critic} if self.critic else {})

    def save(self) -> None:
        state = {name: learner.state() for name, learner in self.learners().items()}
        if ranks.number() == 0:
            checkpoint.save(self.folder / "checkpoints", self.done_steps, {**state, "method": self.method.state()})

    def resume(self) -> None:
        state = checkpoint.latest(self.folder / "checkpoints")
        if state is not None:
            self.done_steps = state["step"]
            self.method.load_state(state["method"])
            for name, learner in self.learners().items():
                learner.load_state(state[name])
        if ranks.number() == 0:
            self.log.truncate(self.done_steps)


def places(prompts: int, updates: int) -> list[int]:
    """Returns this rank's places among the prompts of a step: an equal part of each mini-batch."""
    share = prompts // (updates * ranks.count())
    starts = (share * (update * ranks.count() + ranks.number()) for update in range(updates))
    return [place for start in starts for place in range(start, start + share)]


def mean_of_sums(losses: list[float]) -> float:
    """Returns the mean of the mini-batches' losses, of which each rank has a part."""
    return ranks.total(torch.tensor(losses, dtype=torch.float64)).mean().item()
